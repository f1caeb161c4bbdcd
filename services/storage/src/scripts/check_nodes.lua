-- Checks nodes of a flow that seem to break an invariant, with their jobs.
-- KEYS = flow nodes
-- ARGV = flow
--
-- After the arguments follow the jobs of the nodes.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end

-- Statuses of jobs by the states of their nodes: `NodeState::job_status`.
local JOB_STATUSES = {pending = 'waiting_for_prerequisites', ready = 'waiting_for_prerequisites', dispatched = 'dispatched',
  running = 'started', completed = 'finished', failed = 'error', cancelled = 'error', skipped = 'error'}
local ENDED = {completed = true, failed = true, cancelled = true, skipped = true}

local flow = redis.call('HMGET', KEYS.flow, 'uid', 'status', 'caller_id', 'deleting', 'node_count')
if not flow[1] or flow[4] then return findings end
local name, count = 'flow:' .. ARGV.flow, redis.call('HLEN', KEYS.nodes)
local is_short = flow[2] ~= 'created' and count ~= tonumber(flow[5])
if is_short or count > (tonumber(flow[5]) or 0) then
  report('NODE_COUNT', name .. ':nodes', 'there are ' .. count .. ' nodes, and the flow has ' .. (flow[5] or 'none'))
end

local function node_of(job)
  local is_json, node = pcall(cjson.decode, redis.call('HGET', KEYS.nodes, job) or '')
  return is_json and type(node) == 'table' and JOB_STATUSES[node.state] and node or nil
end

-- Returns a node before this one that has not ended, if this one is under way and has to wait for all of them.
local function too_early(node)
  local is_under_way = node.state == 'dispatched' or node.state == 'running'
  if not is_under_way or node.run_if == 'ANY_FAILED' or type(node.depends) ~= 'table' then return end
  for _, job in ipairs(node.depends) do
    job = string.format('%.0f', tonumber(job) or 0)
    local before = node_of(job)
    if before and not ENDED[before.state] then return job, before.state end
  end
end

local function check_job(job, node)
  local key = 'job:' .. (flow[3] or '') .. ':' .. job
  if redis.call('EXISTS', own(key)) == 0 then
    report('JOB_MISSING', key, 'node ' .. job .. ' of ' .. name .. ' has no job')
    return
  end
  local status = redis.call('HGET', own(key), 'status')
  local problem = 'the job is ' .. string.sub(status or 'without a status', 1, 80) .. ', and its node ' .. node.state
  if status ~= JOB_STATUSES[node.state] and report('JOB_STATUS', key, problem, 'the status is written anew') then
    redis.call('HSET', own(key), 'status', JOB_STATUSES[node.state], 'updated_at', ARGV.now)
  end
end

for a = ARGV_NAMED + 1, #ARGV do
  local job = ARGV[a]
  local node = node_of(job)
  if node then
    check_job(job, node)
    if (flow[2] == 'finished' or flow[2] == 'error' or flow[2] == 'cancelled') and not ENDED[node.state] then
      report('NODE_NOT_ENDED', name .. ':nodes', 'node ' .. job .. ' is ' .. node.state .. ', and the flow has ended')
    end
    local before, state = too_early(node)
    if before then
      local problem = 'node ' .. job .. ' is ' .. node.state .. ', and node ' .. before .. ' before it is ' .. state
      report('NODE_TOO_EARLY', name .. ':nodes', problem)
    end
  end
end
return findings
