-- Gives a message that would not arrive into a router's care again, and remembers the request.
-- KEYS 4 message, 5 letters, 6 dead_letters, 7 msg_out, 8 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 the message, 7 the time from which on one is not too old,
--      8 until when it has to arrive, 9 where it is tried ('' for unchanged), 10 request hash, 11 seconds to remember it,
--      12 the key that it is from ('' for unchanged), 13 why its sender's key does not do ('' when it does)
-- Gives the revision; 0 when the same request had done it before.
local no, context_revision = closed()
if no then return no end
local before, other = asked_before(KEYS[8], ARGV[10])
if other then return other end
if before then return 0 end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if redis.call('EXISTS', KEYS[4]) == 0 then return refuse('MESSAGE_GONE', ARGV[6]) end
if not redis.call('ZSCORE', KEYS[5], KEYS[4]) then
  return refuse('CARRIES_NODES', ARGV[6] .. ' carries nodes, which went by their retry policy: run them again')
end
if not redis.call('ZSCORE', KEYS[6], KEYS[4]) then
  return refuse('NOT_A_DEAD_LETTER', ARGV[6] .. ' is not among those that will not arrive')
end
local message = redis.call('HMGET', KEYS[4], 'created_at', 'recipient')
if (tonumber(message[1]) or 0) < tonumber(ARGV[7]) then
  return refuse('MESSAGE_TOO_OLD', ARGV[6] .. ' was made more than 6 days ago')
end
if ARGV[13] ~= '' then return refuse('SENDER_KEY_OVER', ARGV[6] .. ' ' .. ARGV[13]) end

local revision = raise()
redis.call('HSET', KEYS[4], 'status', 'dispatched', 'transport_status', 'queued', 'error', '', 'router', '',
  'expires_at', ARGV[8], 'updated_at', ARGV[3], 'revision', revision)
if ARGV[9] ~= '' then redis.call('HSET', KEYS[4], 'addresses', ARGV[9]) end
if ARGV[12] ~= '' then redis.call('HSET', KEYS[4], 'from_pubkey', ARGV[12]) end
note(KEYS[4], 'sent again')
redis.call('ZREM', KEYS[6], KEYS[4])
redis.call('ZREM', own('letters_done'), KEYS[4])
redis.call('LPUSH', KEYS[7], KEYS[4])
remember(KEYS[8], ARGV[10], ARGV[11])
emit_message(revision, KEYS[4], 'dispatched')
hint('out')
return revision
