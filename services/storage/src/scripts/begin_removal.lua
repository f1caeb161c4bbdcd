-- Marks an ended flow, or one that was never started and is not wanted any more, as going.
-- KEYS 4 flow, 5 flows_active, 6 due, 7 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 flow id, 7 flow uid, 8 request hash, 9 seconds to remember it,
--      10 the revision that is expected ('' for any)
local no, context_revision = closed()
if no then return no end
use_reserve()
local _, other = asked_before(KEYS[7], ARGV[8])
if other then return other end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'status', 'cancel_requested_time', 'deleting', 'revision',
  'node_count', 'counted')
if flow[1] ~= ARGV[7] then return refuse('FLOW_GONE', 'flow ' .. ARGV[6]) end
if ARGV[10] ~= '' and flow[5] ~= ARGV[10] then
  return refuse('FLOW_CHANGED', 'flow ' .. ARGV[6] .. ' is at revision ' .. flow[5])
end
local given_up = flow[2] == 'created' and flow[3] ~= ''
if flow[2] == 'started' or (flow[2] == 'created' and not given_up) then
  return refuse('FLOW_NOT_ENDED', 'flow ' .. ARGV[6] .. ' is ' .. told(flow[2]) .. ': cancel it first')
end
if not flow[4] then audit(0) end
redis.call('HSET', KEYS[4], 'deleting', '1', 'counted', '')
-- One that was never started has not ended, and does not any more.
if flow[7] == '1' then count_open(-1, -tonumber(flow[6])) end
remember(KEYS[7], ARGV[8], ARGV[9], 'flow_uid', ARGV[7])
local me = ARGV[6] .. '-' .. ARGV[7]
redis.call('SREM', KEYS[5], me)
redis.call('ZREM', KEYS[6], me)
return 1
