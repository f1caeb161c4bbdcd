-- Takes messages that were read out of an inbox.
-- KEYS 4 inbox, then the request (only with a request id), then messages
-- ARGV 5 the context's revision that permission was decided on, 6 whose inbox it is, 7 request hash ('' for no request),
--      8 seconds to remember it, 9 which part of the request this is
-- Gives how many were in it until now, and the revision of the change, or 0 when there was none.
local no, context_revision = closed()
if no then return no end
use_reserve()
local request, first = nil, 5
if ARGV[7] ~= '' then request, first = KEYS[5], 6 end
local before, other = asked_before(request, ARGV[7])
if other then return other end
-- The parts of a request come one after the other: what broke off goes on with the next.
local done_then = before and redis.call('HGET', request, 'part:' .. ARGV[9])
if done_then then return {tonumber(done_then), 0} end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local there = {}
for k = first, #KEYS do
  if take_from(ARGV[6], KEYS[k]) then there[#there + 1] = KEYS[k] end
end
remember(request, ARGV[7], ARGV[8], 'part:' .. ARGV[9], #there)
if #there == 0 then return {0, 0} end

local revision = raise()
for _, key in ipairs(there) do
  if is_hash(key) then
    redis.call('HSET', key, 'status', 'processed', 'transport_status', 'read', 'updated_at', ARGV[3], 'revision', revision)
  end
  emit_message(revision, key, 'processed')
  done(revision, key)
end
hint('')
return {#there, revision}
