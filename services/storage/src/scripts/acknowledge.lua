-- Takes messages that were read out of an inbox.
-- KEYS 4 inbox, 5.. messages
-- ARGV 5 the context's revision that permission was decided on, 6 whose inbox it is
-- Gives how many were in it until now, and the revision of the change, or 0 when there was none.
local no = closed()
if no then return no end
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local there = {}
for k = 5, #KEYS do
  if take_from(ARGV[6], KEYS[k]) then there[#there + 1] = KEYS[k] end
end
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
