-- Starts a flow that has all its nodes, and gives it its first owner, or none yet.
-- KEYS = flow nodes flows_active signals
-- ARGV = context_revision flow flow_uid owner now_millis last_commit request_hash request_secs jobs
--
-- Permission was decided on `context_revision` of the context, '' for a service. `owner` is '' for none, `last_commit` what the
-- first commit builds on, `jobs` the ids of its jobs as JSON. With a request id, the request follows the keys.
-- Returns the new revision, or 0 when nothing changed; and the signals that were given before.
local no, context_revision = closed()
if no then return no end
local request = KEYS[KEYS_NAMED + 1]
local _, reused = asked_before(request, ARGV.request_hash)
if reused then return reused end
local function carried_out()
  remember(request, ARGV.request_hash, ARGV.request_secs, 'flow_id', ARGV.flow, 'flow_uid', ARGV.flow_uid)
end
if ARGV.context_revision ~= '' and context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'status', 'owner', 'epoch', 'node_count', 'deadline_secs', 'generation', 'deleting',
  'cancel_requested_time', 'bytes')
if flow[1] ~= ARGV.flow_uid or flow[8] then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
-- Accepts a repeat whose first answer was lost. A caller that names no owner accepts any.
if flow[2] == 'started' and (ARGV.owner == '' or (flow[3] == ARGV.owner and flow[4] == '1')) then
  carried_out()
  return {0, redis.call('HKEYS', KEYS.signals)}
end
if flow[2] ~= 'created' then return refuse('FLOW_NOT_CREATED', 'flow ' .. ARGV.flow .. ' is ' .. told(flow[2])) end
local there = redis.call('HLEN', KEYS.nodes)
if there ~= tonumber(flow[5]) then
  return refuse('NODES_MISSING', 'flow ' .. ARGV.flow .. ' has ' .. there .. ' of its ' .. flow[5] .. ' nodes')
end

local revision = raise()
redis.call('HSET', KEYS.flow, 'status', 'started', 'owner', ARGV.owner, 'epoch', 1,
  'deadline', deadline(ARGV.now_millis, flow[6]), 'jobs', ARGV.jobs, 'updated_at', ARGV.now,
  'revision', revision, 'last_commit', ARGV.last_commit, 'last_commit_revision', revision)
local me = ARGV.flow .. '-' .. ARGV.flow_uid
redis.call('SADD', KEYS.flows_active, me)
list_flow(ARGV.flow, 'started', flow[2])
-- A flow that was cancelled before is kept as one that is over, until it is started all the same.
if (flow[9] or '') ~= '' then
  leave_ended(ARGV.flow, flow[10])
  redis.call('HDEL', KEYS.flow, 'bytes')
end
carried_out()
emit_flow(revision, ARGV.flow, 'started', flow[7])
hint('')
if ARGV.owner == '' then touch(me) end
return {revision, redis.call('HKEYS', KEYS.signals)}
