-- Marks a flow as being removed that has ended, or that was never started and is not wanted any more.
-- KEYS = flow flows_active due
-- ARGV = context_revision flow flow_uid request_hash request_secs expected_revision
--
-- Permission was decided on `context_revision` of the context, '' for storage itself. `expected_revision` is that of the flow, '' for any. With a
-- request id, the request follows the keys.
local no, context_revision = closed()
if no then return no end
use_reserve()
local request = KEYS[KEYS_NAMED + 1]
local _, other = asked_before(request, ARGV.request_hash)
if other then return other end
if ARGV.context_revision ~= '' and context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'status', 'cancel_requested_time', 'deleting', 'revision',
  'node_count', 'counted')
if flow[1] ~= ARGV.flow_uid then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
if ARGV.expected_revision ~= '' and flow[5] ~= ARGV.expected_revision then
  return refuse('FLOW_CHANGED', 'flow ' .. ARGV.flow .. ' is at revision ' .. flow[5])
end
local given_up = flow[2] == 'created' and flow[3] ~= ''
if flow[2] == 'started' or (flow[2] == 'created' and not given_up) then
  return refuse('FLOW_NOT_ENDED', 'flow ' .. ARGV.flow .. ' is ' .. told(flow[2]) .. ': cancel it first')
end
if not flow[4] then audit(0) end
redis.call('HSET', KEYS.flow, 'deleting', '1', 'counted', '')
-- Uncounts a flow that was never started: it has not ended, and will not.
if flow[7] == '1' then count_open(-1, -tonumber(flow[6])) end
remember(request, ARGV.request_hash, ARGV.request_secs, 'flow_uid', ARGV.flow_uid)
local me = ARGV.flow .. '-' .. ARGV.flow_uid
redis.call('SREM', KEYS.flows_active, me)
redis.call('ZREM', KEYS.due, me)
return 1
