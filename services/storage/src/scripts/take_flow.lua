-- Makes another replica the owner of a running flow.
-- KEYS = flow flows_active due
-- ARGV = flow owner last_commit
--
-- `last_commit` is what its first commit builds on.
local no = closed()
if no then return no end
use_reserve()
local flow = redis.call('HMGET', KEYS.flow, 'status', 'generation', 'deleting', 'uid')
if not flow[1] or flow[3] then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
if flow[1] == 'created' then return refuse('FLOW_NOT_STARTED', 'flow ' .. ARGV.flow .. ' was not started') end
if flow[1] ~= 'started' then
  -- Removes the flow from the active ones: a flow that it waited for may have put it back.
  local me = ARGV.flow .. '-' .. flow[4]
  redis.call('SREM', KEYS.flows_active, me)
  redis.call('ZREM', KEYS.due, me)
  return refuse('FLOW_ENDED', 'flow ' .. ARGV.flow .. ' is ' .. told(flow[1]))
end

local revision = raise()
redis.call('HINCRBY', KEYS.flow, 'epoch', 1)
redis.call('HSET', KEYS.flow, 'owner', ARGV.owner, 'updated_at', ARGV.now, 'revision', revision, 'last_commit', ARGV.last_commit,
  'last_commit_revision', revision)
emit_flow(revision, ARGV.flow, 'started', flow[2])
hint('')
return revision
