-- Keeps chat or mail that is sent from here, gives it into a router's care, and remembers the request.
-- KEYS 4 letters, 5 msg_out, 6 msg_out_coordinator, 7 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 caller, 7 router ('' for none), 8 end of its hold,
--      9 what the keys of this context begin with, 10 request hash, 11 seconds to remember it, 12.. fields
-- Gives its number and the revision; or the number that the same request was given, and 0.
local no, context_revision = closed()
if no then return no end
local before, other = asked_before(KEYS[7], ARGV[10])
if other then return other end
if before then return {redis.call('HGET', KEYS[7], 'message_id'), 0} end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local id, key = new_message(ARGV[9], ARGV[6])
if not id then return refuse('IDS_EXHAUSTED', 'the caller has no message ids left') end

local revision = raise()
redis.call('HSET', key, 'id', id, 'router', ARGV[7], 'revision', revision, unpack(ARGV, 12))
redis.call('ZADD', KEYS[4], revision, key)
remember(KEYS[7], ARGV[10], ARGV[11], 'caller_id', ARGV[6], 'message_id', id)
emit_message(revision, key, 'dispatched')
if ARGV[7] == '' then
  redis.call('LPUSH', KEYS[5], key)
  hint('out')
else
  redis.call('ZADD', KEYS[6], ARGV[8], key)
  hint('')
end
return {id, revision}
