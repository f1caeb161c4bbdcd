-- Applies one step of one flow.
-- KEYS 4 flow, 5 its nodes, 6 its messages, 7 flows_active, 8 due, 9 msg_out, 10 msg_out_coordinator, 11 blob_idle,
--      12 its inputs, 13 its waiters, then N jobs, then M messages, then B pairs blob and blob_refs,
--      then A times the waiters of a flow that it waits for, then C messages that carried attempts which have ended
-- ARGV 5 flow id, 6 flow uid, 7 owner, 8 epoch, 9 last commit, 10 commit id, 11 new status ('' for none),
--      12 result, 13 whether it is incomplete, 14 due in Unix seconds ('' for never), 15 router ('' for none),
--      16 end of its hold, 17 N, 18 M, 19 E, 20 B, 21 context id,
--      22 how many inputs it has taken up, 23 whether it rests, 24 A, 25 C, 26 what the keys of this context begin with,
--      then N times: job id, node, job status, result ('' for unchanged);
--      then M times: caller, id, runner, timeout_ack, nodes, time of its making, how many nodes, their job keys;
--      then E events; then B times the number of the job that refers to the blob; then C times the
--      jobs of the attempts, with spaces between
-- Gives the flow's new revision and what was emitted; the revision of then, negative, when the same commit was applied before.
local no = closed()
if no then return no end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'owner', 'epoch', 'last_commit', 'status', 'generation', 'deleting',
  'last_commit_revision', 'message', 'node_count', 'counted', unpack(ABOUT))
if flow[1] ~= ARGV[6] or flow[7] then return refuse('FLOW_GONE', 'the flow') end
if flow[4] == ARGV[10] then return {-tonumber(flow[8])} end
if flow[2] ~= ARGV[7] or flow[3] ~= ARGV[8] then
  return refuse('FENCED', 'owner ' .. (flow[2] or '') .. ' epoch ' .. (flow[3] or ''))
end
-- Wishes of others raise the flow's revision; what fences is the owner's last change.
if flow[4] ~= ARGV[9] then return refuse('FENCED', 'last commit ' .. (flow[4] or '')) end
if flow[5] ~= 'started' then return refuse('FENCED', 'the flow is ' .. flow[5]) end
-- What is cancelled can end and be removed, however full Redis is. What goes on waits for room.
local fields = {unpack(flow, 12, 16)}
if (fields[5] or '') ~= '' then use_reserve() end

-- What became of the jobs of the message that the flow was made of, as JSON. A result that makes it too long is left out.
local function outcome(message)
  local flow = redis.call('HMGET', KEYS[4], 'caller_id', 'first_job_id', 'node_count')
  local jobs, bytes, first = {}, 0, tonumber(flow[2])
  for id = first, first + tonumber(flow[3]) - 1 do
    id = string.format('%.0f', id)
    local name = string.match(redis.call('HGET', KEYS[5], id) or '', '"name":"([%w_-]+)"') or id
    local key = 'job:' .. flow[1] .. ':' .. id
    local job = redis.call('HMGET', ARGV[26] .. key, 'status', 'result')
    local result = job[2] or '{}'
    bytes = bytes + #result
    result = bytes <= 262144 and ',"result":' .. result or ''
    jobs[#jobs + 1] = '"' .. (string.match(name, '^job%-(%d+)$') or name) .. '":{"job":"' .. key .. '","status":"'
      .. (job[1] or '') .. '"' .. result .. '}'
  end
  return '{"message":"' .. message .. '","flow_id":' .. ARGV[5] .. ',"status":"' .. ARGV[11] .. '","jobs":{'
    .. table.concat(jobs, ',') .. '}}', flow[1]
end

-- The message that the flow was made of has the flow's end, and its sender is told.
local function tell(revision, message)
  local key = ARGV[26] .. message
  local ended = 'flow ' .. ARGV[5] .. ' has ended: ' .. told(ARGV[11])
  -- Its program may have written another one under this key since.
  if is_hash(key) and redis.call('HGET', key, 'flow_id') == ARGV[5] then
    local finished = ARGV[11] == 'finished'
    redis.call('HSET', key, 'status', finished and 'processed' or 'error', 'error', finished and '' or ended,
      'updated_at', ARGV[3], 'revision', revision, 'logs', logged(redis.call('HGET', key, 'logs'), ended))
    -- Whoever waited for the flow to be made may have given it up; it has arrived all the same.
    redis.call('ZREM', ARGV[26] .. 'dead_letters', key)
    emit_message(revision, key, finished and 'processed' or 'error')
    if redis.call('ZSCORE', ARGV[26] .. 'letters', key) then done(revision, key) end
  end
  local text, caller = outcome(message)
  local id, told = new_message(ARGV[26], '0')
  if not id then return end
  redis.call('HSET', told, 'id', id, 'revision', revision, 'caller_id', '0', 'context_id', ARGV[21], 'flow_id', ARGV[5],
    'to', caller, 'target_context', ARGV[21], 'topic', message, 'from_pubkey', '', 'origin', '', 'signature', '',
    'message', text, 'message_type', 'chat', 'message_format_type', 'text', 'timeout', '0', 'timeout_ack', '0',
    'timeout_result', '0', 'nodes', '[]', 'logs', '[]', 'created_at', ARGV[3], 'updated_at', ARGV[3], 'error', '',
    'status', 'acknowledged', 'transport_id', '', 'transport_status', 'delivered', 'router', '', 'verified', 'false')
  redis.call('ZADD', ARGV[26] .. 'letters', revision, told)
  redis.call('LPUSH', ARGV[26] .. 'msg_in', told)
  redis.call('LTRIM', ARGV[26] .. 'msg_in', 0, 9999)
  -- A full inbox takes no more; the message is kept all the same, and its key stands in `msg_in`.
  local has_room = has_place(caller, #text)
  if has_room then put_in(caller, told, revision, #text) end
  emit_message(revision, told, 'acknowledged')
  if not has_room then done(revision, told) end
  hint('inbox:' .. caller)
end

local revision = raise()
local N, M, E, B = tonumber(ARGV[17]), tonumber(ARGV[18]), tonumber(ARGV[19]), tonumber(ARGV[20])
local A, C = tonumber(ARGV[24]), tonumber(ARGV[25])
local at, jobs_at, kind = 26, 13, ''
if N > 0 then
  local nodes = {}
  for n = 1, N do
    nodes[2 * n - 1] = ARGV[at + 1]
    nodes[2 * n] = ARGV[at + 2]
    if ARGV[at + 4] == '' then
      redis.call('HSET', KEYS[jobs_at + n], 'status', ARGV[at + 3], 'updated_at', ARGV[3])
    else
      redis.call('HSET', KEYS[jobs_at + n], 'status', ARGV[at + 3], 'updated_at', ARGV[3], 'result', ARGV[at + 4])
    end
    at = at + 4
  end
  redis.call('HSET', KEYS[5], unpack(nodes))
end
if M > 0 and ARGV[15] == '' then kind = 'out' end
-- `at` is one before what comes next.
at = write_messages(M, jobs_at + N, at + 1, {context = ARGV[21], flow = ARGV[5], router = ARGV[15], hold_end = ARGV[16],
  revision = revision, carriers = KEYS[6], out = KEYS[9], held = KEYS[10]}) - 1
for e = 1, E do emit(revision, ARGV[at + e]) end
at = at + E
for b = 1, B do
  local blob = KEYS[jobs_at + N + M + 2 * b - 1]
  if redis.call('EXISTS', blob) == 1 then
    redis.call('SADD', KEYS[jobs_at + N + M + 2 * b], KEYS[jobs_at + tonumber(ARGV[at + b])])
    redis.call('ZREM', KEYS[11], string.match(blob, '%x+$'))
  end
end
for c = 1, C do
  local key = KEYS[jobs_at + N + M + 2 * B + A + c]
  -- One that is gone is not made anew; nor does it matter what a program has left in its place, or in `open`: what is no hash
  -- has no status.
  local message = redis.pcall('HMGET', key, 'status', 'logs')
  local status = message[1]
  local jobs = ARGV[at + B + c]
  local _, others = string.gsub(jobs, ' ', '')
  local open = status and redis.pcall('HINCRBY', key, 'open', -others - 1)
  if type(open) == 'number' and open <= 0 and status == 'acknowledged' then
    redis.call('HSET', key, 'status', 'processed', 'updated_at', ARGV[3], 'revision', revision)
  elseif type(open) == 'number' and open <= 0 and status == 'dispatched' and redis.call('ZSCORE', KEYS[10], key) then
    -- The last of its jobs has ended before its router told that it has arrived: there is nothing more to say of it then.
    redis.call('HSET', key, 'status', 'processed', 'transport_status', 'read', 'updated_at', ARGV[3], 'revision', revision,
      'logs', logged(message[2], 'acknowledged'), 'nodes', '[]')
  elseif type(open) == 'number' and open > 0 and status == 'dispatched' then
    -- Whoever is given it after this sends the others alone.
    redis.call('HSET', key, 'ended', (redis.call('HGET', key, 'ended') or '') .. ' ' .. jobs)
  end
end
local ends = ARGV[11] ~= '' and ARGV[11] ~= 'started'
local changed = {'revision', revision, 'last_commit', ARGV[10], 'last_commit_revision', revision, 'updated_at', ARGV[3]}
if ARGV[11] ~= '' then
  redis.call('HSET', KEYS[4], 'status', ARGV[11], 'result', ARGV[12], 'result_truncated', ARGV[13],
    'counted', ends and '' or flow[11] or '', unpack(changed))
  list_flow(ARGV[5], ARGV[11], flow[5])
  -- Watchers of its end read the flow only where its result is long.
  local is_told = ends and ARGV[13] ~= 'true' and #ARGV[12] <= 1024
  emit_flow(revision, ARGV[5], ARGV[11], flow[6], fields, is_told and ARGV[12])
else
  redis.call('HSET', KEYS[4], unpack(changed))
  if E == 0 then emit_flow(revision, ARGV[5], 'started', flow[6], fields) end
end
-- What began with an earlier version may have been counted never.
if ends and flow[11] == '1' then count_open(-1, -tonumber(flow[10])) end
local me = ARGV[5] .. '-' .. ARGV[6]
local taken = tonumber(ARGV[22])
-- Mostly a flow has neither inputs nor others that wait for it.
local has_company = ends and redis.call('EXISTS', KEYS[12], KEYS[13]) > 0
if has_company then
  redis.call('UNLINK', KEYS[12])
elseif not ends and taken > 0 then
  redis.call('LTRIM', KEYS[12], taken, -1)
end
-- What came meanwhile keeps it from resting: an input, or the end of a flow that it waits for.
local rests = ARGV[23] == '1' and redis.call('LLEN', KEYS[12]) == 0
for a = 1, A do
  rests = rests and redis.call('SISMEMBER', KEYS[jobs_at + N + M + 2 * B + a], me) == 1
end
if ends or rests then
  redis.call('SREM', KEYS[7], me)
else
  redis.call('SADD', KEYS[7], me)
end
if not ends and ARGV[14] ~= '' then
  redis.call('ZADD', KEYS[8], ARGV[14], me)
else
  redis.call('ZREM', KEYS[8], me)
end
if ends then
  if has_company then wake(KEYS[13], KEYS[7]) end
  if flow[9] and flow[9] ~= '' then tell(revision, flow[9]) end
end
hint(kind)
return {revision, written}
