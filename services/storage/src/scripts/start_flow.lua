-- Starts a flow that has all its nodes, and gives it its first owner, or none yet.
-- KEYS 4 flow, 5 its nodes, 6 flows_active, 7 its signals, 8 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on ('' for a service), 6 flow id, 7 flow uid,
--      8 owner ('' for none), 9 now in milliseconds, 10 what the first commit builds on, 11 request hash, 12 seconds to
--      remember it
-- Gives the new revision, or 0 when nothing changed; and the signals that were given before.
local no, context_revision = closed()
if no then return no end
local _, reused = asked_before(KEYS[8], ARGV[11])
if reused then return reused end
local function carried_out()
  remember(KEYS[8], ARGV[11], ARGV[12], 'flow_id', ARGV[6], 'flow_uid', ARGV[7])
end
if ARGV[5] ~= '' and context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'status', 'owner', 'epoch', 'node_count', 'first_job_id',
  'deadline_secs', 'generation', 'deleting')
if flow[1] ~= ARGV[7] or flow[9] then return refuse('FLOW_GONE', 'flow ' .. ARGV[6]) end
-- The same call again, since its answer was lost. Who names no owner is content with any.
if flow[2] == 'started' and (ARGV[8] == '' or (flow[3] == ARGV[8] and flow[4] == '1')) then
  carried_out()
  return {0, redis.call('HKEYS', KEYS[7])}
end
if flow[2] ~= 'created' then return refuse('FLOW_NOT_CREATED', 'flow ' .. ARGV[6] .. ' is ' .. told(flow[2])) end
local there, count = redis.call('HLEN', KEYS[5]), tonumber(flow[5])
if there ~= count then
  return refuse('NODES_MISSING', 'flow ' .. ARGV[6] .. ' has ' .. there .. ' of its ' .. flow[5] .. ' nodes')
end

local revision = raise()
local jobs, first = {}, tonumber(flow[6])
for n = 1, count do jobs[n] = string.format('%.0f', first + n - 1) end
redis.call('HSET', KEYS[4], 'status', 'started', 'owner', ARGV[8], 'epoch', 1, 'deadline', deadline(ARGV[9], flow[7]),
  'jobs', '[' .. table.concat(jobs, ',') .. ']', 'updated_at', ARGV[3], 'revision', revision, 'last_commit', ARGV[10],
  'last_commit_revision', revision)
local me = ARGV[6] .. '-' .. ARGV[7]
redis.call('SADD', KEYS[6], me)
list_flow(ARGV[6], 'started', flow[2])
carried_out()
emit_flow(revision, ARGV[6], 'started', flow[8])
hint('')
if ARGV[8] == '' then touch(me) end
return {revision, redis.call('HKEYS', KEYS[7])}
