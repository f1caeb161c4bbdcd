-- Checks flows against the lists that name them.
-- KEYS = flows flows_active flows_ended flows_unmeasured
--
-- After the arguments follow for each flow its id, and the jobs of nodes that were seen to be ready or under way, with spaces between.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end
-- Missing until an earlier version's flows are listed by status; 2 once those that are over are listed, too.
local listed = redis.call('HGET', KEYS.ids, 'flows_listed')

-- Checks that no list names a flow that does not exist.
local function check_gone(id)
  local lists, naming = {'flows', 'flows_ended'}, {}
  for _, status in ipairs(STATUSES) do lists[#lists + 1] = 'flows:' .. status end
  for _, list in ipairs(lists) do
    if redis.call('ZSCORE', own(list), id) then naming[#naming + 1] = list end
  end
  local unmeasured = redis.call('SISMEMBER', KEYS.flows_unmeasured, id) == 1
  local names = table.concat(naming, ', ') .. (unmeasured and ((#naming > 0 and ', ' or '') .. 'flows_unmeasured') or '')
  if names == '' then return end
  local problem = 'the flow does not exist, and is named in ' .. names
  if not report('FLOW_GONE', 'flow:' .. id, problem, 'the entries are removed') then return end
  for _, list in ipairs(naming) do redis.call('ZREM', own(list), id) end
  redis.call('SREM', KEYS.flows_unmeasured, id)
end

-- Returns the place of a flow among all, once it has one.
local function check_place(id, flow)
  local place = redis.call('ZSCORE', KEYS.flows, id)
  if place then return place end
  -- A change has its number alone: no other flow stands at this place.
  place = redis.call('ZSCORE', own('flows:' .. flow.status), id) or flow.revision
  if not tonumber(place) then return end
  if not report('FLOW_NOT_LISTED', 'flow:' .. id, 'the flow is not in flows', 'it is listed') then return end
  redis.call('ZADD', KEYS.flows, place, id)
  list_flow(id, flow.status)
  return place
end

-- Checks that a flow is in the list of its status, at its place among all flows, and in no other.
local function check_status(id, flow, place)
  local wrong = {}
  for _, status in ipairs(STATUSES) do
    local score = redis.call('ZSCORE', own('flows:' .. status), id)
    if status == flow.status and not score then
      wrong[#wrong + 1] = 'is missing in flows:' .. status
    elseif status == flow.status and tonumber(score) ~= tonumber(place) then
      wrong[#wrong + 1] = 'is at another place in flows:' .. status .. ' than in flows'
    elseif status ~= flow.status and score then
      wrong[#wrong + 1] = 'is in flows:' .. status
    end
  end
  local problem = 'the flow is ' .. flow.status .. ', but ' .. table.concat(wrong, ' and ')
  if #wrong == 0 or not report('FLOW_STATUS_LIST', 'flow:' .. id, problem, 'it is listed under its status alone') then return end
  for _, status in ipairs(STATUSES) do list_flow(id, nil, status) end
  list_flow(id, flow.status)
end

-- Returns why a flow has something to do now, by its inputs and these of its nodes; nothing when it has not.
local function work_of(key, jobs)
  if redis.call('LLEN', key .. ':inputs') > 0 then return 'inputs wait' end
  for job in string.gmatch(jobs, '%d+') do
    local is_json, node = pcall(cjson.decode, redis.call('HGET', key .. ':nodes', job) or '')
    local state = is_json and type(node) == 'table' and node.state
    if state == 'ready' or state == 'dispatched' or state == 'running' then return 'node ' .. job .. ' is ' .. state end
  end
end

local function check(id, jobs)
  local key = own('flow:' .. id)
  local known = redis.call('HMGET', key, 'uid', 'status', 'cancel_requested_time', 'deleting', 'revision')
  local flow = {status = known[2], revision = known[5]}
  if redis.call('EXISTS', key) == 0 then return check_gone(id) end
  local is_known = false
  for _, status in ipairs(STATUSES) do is_known = is_known or status == flow.status end
  if not known[1] or not is_known then return end
  local place = check_place(id, flow)
  if place and listed then check_status(id, flow, place) end
  -- A flow that is being removed is in no list of what has something to do, or is to be removed.
  if known[4] then return end
  if listed == '2' and is_over(flow.status, known[3]) and not redis.call('ZSCORE', KEYS.flows_ended, id)
    and redis.call('SISMEMBER', KEYS.flows_unmeasured, id) == 0
    and report('FLOW_NEVER_EXPIRES', 'flow:' .. id, 'the flow is over, and is in neither flows_ended nor flows_unmeasured',
      'it is measured, and removed when its time comes') then
    redis.call('HDEL', key, 'bytes')
    redis.call('SADD', KEYS.flows_unmeasured, id)
  end
  local me = id .. '-' .. known[1]
  if flow.status ~= 'started' or redis.call('SISMEMBER', KEYS.flows_active, me) == 1 then return end
  local work = work_of(key, jobs)
  local problem = (work or '') .. ', and the flow is not in flows_active'
  if work and report('FLOW_ASLEEP', 'flow:' .. id, problem, 'a scheduler is told to go on with it') then
    redis.call('SADD', KEYS.flows_active, me)
    touch(me)
  end
end

for a = ARGV_NAMED + 1, #ARGV, 2 do check(ARGV[a], ARGV[a + 1]) end
return findings
