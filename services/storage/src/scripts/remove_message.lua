-- Removes a message that is not on its way any more.
-- KEYS 4 message, 5 letters, 6 dead_letters, 7 msg_in, 8 the inbox that it may be in, 9 letters_done,
--      10 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 the message, 7 whose inbox that is, 8 request hash,
--      9 seconds to remember it
-- Gives the revision of the change; 0 when the same request had made it before.
local no, context_revision = closed()
if no then return no end
use_reserve()
local before, other = asked_before(KEYS[10], ARGV[8])
if other then return other end
if before then return 0 end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if redis.call('EXISTS', KEYS[4]) == 0 then return refuse('MESSAGE_GONE', ARGV[6]) end
if not redis.call('ZSCORE', KEYS[5], KEYS[4]) then
  return refuse('CARRIES_NODES', ARGV[6] .. ' carries nodes of a flow, and goes with it')
end
local message = redis.call('HMGET', KEYS[4], 'status', 'message_type', 'flow_id')
-- What became a flow is under way until that has ended, or is gone.
local flow = message[2] == 'job' and string.match(message[3] or '', '^%d+$')
local is_flow = flow and redis.call('EXISTS', own('flow:' .. flow)) == 1
local ended = message[1] == 'processed' or message[1] == 'error'
if not ended and (message[1] ~= 'acknowledged' or is_flow) then
  return refuse('MESSAGE_UNDER_WAY', ARGV[6] .. ' is on its way')
end

local revision = raise()
take_from(ARGV[7], KEYS[4])
redis.call('UNLINK', KEYS[4])
redis.call('ZREM', KEYS[5], KEYS[4])
redis.call('ZREM', KEYS[6], KEYS[4])
redis.call('ZREM', KEYS[9], KEYS[4])
redis.call('LREM', KEYS[7], 0, KEYS[4])
remember(KEYS[10], ARGV[8], ARGV[9])
emit_message(revision, KEYS[4], nil)
hint('')
return revision
