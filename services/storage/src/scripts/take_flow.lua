-- Makes somebody else the owner of a flow that runs.
-- KEYS 4 flow, 5 flows_active, 6 due
-- ARGV 5 flow id, 6 owner, 7 what its first commit builds on
local no = closed()
if no then return no end
use_reserve()
local flow = redis.call('HMGET', KEYS[4], 'status', 'generation', 'deleting', 'uid')
if not flow[1] or flow[3] then return refuse('FLOW_GONE', 'flow ' .. ARGV[5]) end
if flow[1] == 'created' then return refuse('FLOW_NOT_STARTED', 'flow ' .. ARGV[5] .. ' was not started') end
if flow[1] ~= 'started' then
  -- Somebody that it waited for may have put it back among those that have something to do.
  local me = ARGV[5] .. '-' .. flow[4]
  redis.call('SREM', KEYS[5], me)
  redis.call('ZREM', KEYS[6], me)
  return refuse('FLOW_ENDED', 'flow ' .. ARGV[5] .. ' is ' .. told(flow[1]))
end

local revision = raise()
redis.call('HINCRBY', KEYS[4], 'epoch', 1)
redis.call('HSET', KEYS[4], 'owner', ARGV[6], 'updated_at', ARGV[3], 'revision', revision, 'last_commit', ARGV[7],
  'last_commit_revision', revision)
emit_flow(revision, ARGV[5], 'started', flow[2])
hint('')
return revision
