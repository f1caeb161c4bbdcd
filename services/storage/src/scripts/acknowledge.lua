-- Removes messages that were read from an inbox.
-- KEYS = inbox
-- ARGV = context_revision actor request_hash request_secs part
--
-- Permission was decided on `context_revision` of the context. The inbox is that of `actor`; `part` says which part of the
-- request this is. After the keys follow with a request id the request, and the messages.
-- Returns how many were in it until now, and the revision of the change, or 0 without a change.
local no, context_revision = closed()
if no then return no end
use_reserve()
local request, first = nil, KEYS_NAMED + 1
if ARGV.request_hash ~= '' then request, first = KEYS[KEYS_NAMED + 1], KEYS_NAMED + 2 end
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
-- Returns the count of a part that was done before: the parts of a request come in order, and a broken call continues with the next.
local done_then = before and redis.call('HGET', request, 'part:' .. ARGV.part)
if done_then then return {tonumber(done_then), 0} end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local there = {}
for k = first, #KEYS do
  if take_from(ARGV.actor, KEYS[k]) then there[#there + 1] = KEYS[k] end
end
remember(request, ARGV.request_hash, ARGV.request_secs, 'part:' .. ARGV.part, #there)
if #there == 0 then return {0, 0} end

local revision = raise()
for _, key in ipairs(there) do
  if is_hash(key) then
    redis.call('HSET', key, 'status', 'processed', 'transport_status', 'read', 'updated_at', ARGV.now, 'revision', revision)
  end
  emit_message(revision, key, 'processed')
  done(revision, key)
end
hint('')
return {#there, revision}
