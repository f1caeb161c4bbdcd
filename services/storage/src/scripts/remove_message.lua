-- Removes a message that is no longer in transit.
-- KEYS = message letters dead_letters msg_in inbox letters_done
-- ARGV = context_revision message actor request_hash request_secs
--
-- Permission was decided on `context_revision` of the context. The message may be in `inbox`, that of `actor`. With a request id,
-- the request follows the keys.
-- Returns the revision of the change; 0 when the same request had made it before.
local no, context_revision = closed()
if no then return no end
use_reserve()
local request = KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return 0 end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if redis.call('EXISTS', KEYS.message) == 0 then return refuse('MESSAGE_GONE', ARGV.message) end
if not redis.call('ZSCORE', KEYS.letters, KEYS.message) then
  return refuse('CARRIES_NODES', ARGV.message .. ' carries nodes of a flow, and goes with it')
end
local message = redis.call('HMGET', KEYS.message, 'status', 'message_type', 'flow_id')
-- Counts a message that became a flow as in transit until the flow has ended, or is gone.
local flow = message[2] == 'job' and string.match(message[3] or '', '^%d+$')
local is_flow = flow and redis.call('EXISTS', own('flow:' .. flow)) == 1
local ended = message[1] == 'processed' or message[1] == 'error'
if not ended and (message[1] ~= 'acknowledged' or is_flow) then
  return refuse('MESSAGE_UNDER_WAY', ARGV.message .. ' is on its way')
end

local revision = raise()
take_from(ARGV.actor, KEYS.message)
redis.call('UNLINK', KEYS.message)
redis.call('ZREM', KEYS.letters, KEYS.message)
redis.call('ZREM', KEYS.dead_letters, KEYS.message)
redis.call('ZREM', KEYS.letters_done, KEYS.message)
redis.call('LREM', KEYS.msg_in, 0, KEYS.message)
remember(request, ARGV.request_hash, ARGV.request_secs)
emit_message(revision, KEYS.message, nil)
hint('')
return revision
