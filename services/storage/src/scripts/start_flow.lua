-- Starts a flow that has all its nodes, and gives it its first owner.
-- KEYS 4 flow, 5 its nodes, 6 flows_active
-- ARGV 5 flow id, 6 flow uid, 7 owner, 8 now in milliseconds
local no = closed()
if no then return no end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'status', 'owner', 'epoch', 'node_count', 'first_job_id',
  'deadline_secs', 'generation', 'deleting')
if flow[1] ~= ARGV[6] or flow[9] then return refuse('FLOW_GONE', 'flow ' .. ARGV[5]) end
-- The same call again, since its answer was lost.
if flow[2] == 'started' and flow[3] == ARGV[7] and flow[4] == '1' then return 0 end
if flow[2] ~= 'created' then return refuse('FLOW_NOT_CREATED', 'flow ' .. ARGV[5] .. ' is ' .. flow[2]) end
local there, count = redis.call('HLEN', KEYS[5]), tonumber(flow[5])
if there ~= count then
  return refuse('NODES_MISSING', 'flow ' .. ARGV[5] .. ' has ' .. there .. ' of its ' .. flow[5] .. ' nodes')
end

local revision = raise()
local jobs, first = {}, tonumber(flow[6])
for n = 1, count do jobs[n] = string.format('%.0f', first + n - 1) end
local deadline = ''
if flow[7] ~= '' then
  local millis = tonumber(ARGV[8]) + 1000 * tonumber(flow[7])
  deadline = string.format('%.0f.%03.0f', math.floor(millis / 1000), millis % 1000)
end
redis.call('HSET', KEYS[4], 'status', 'started', 'owner', ARGV[7], 'epoch', 1, 'deadline', deadline,
  'jobs', '[' .. table.concat(jobs, ',') .. ']', 'updated_at', ARGV[3], 'revision', revision, 'commit_revision', revision)
redis.call('SADD', KEYS[6], ARGV[5])
emit_flow(revision, ARGV[5], 'started', flow[8])
hint('')
return revision
