-- Applies one step of one flow.
-- KEYS = flow nodes carriers flows_active due out held blob_idle inputs waiters
-- ARGV = flow flow_uid owner epoch last_commit commit status result is_incomplete due router hold_end nodes messages events blobs
-- ARGV = context inputs_taken rests awaited ended prefix
--
-- `carriers` are the flow's messages, `waiters` the flows that wait for it. `status` is '' when it stays, `due` in Unix seconds,
-- '' for never, `router` '' for none; `prefix` is what the keys of this context begin with. `nodes`, `messages`, `events`,
-- `blobs`, `awaited` and `ended` are their numbers. After the keys follow the jobs of the nodes, the messages, for each blob its
-- key and its blob_refs, the waiters of each awaited flow, the messages that carried attempts which have ended. After the
-- arguments follow for each node its job id, itself, the job's status and its result, '' for unchanged; the messages as
-- `write_messages` has them; the events; for each blob the number of the job that refers to it; for each message whose attempts
-- have ended their jobs, with spaces between.
-- Returns the flow's new revision and what was emitted; the earlier revision, negative, when the same commit was applied before.
local no = closed()
if no then return no end
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'owner', 'epoch', 'last_commit', 'status', 'generation', 'deleting',
  'last_commit_revision', 'message', 'node_count', 'counted', unpack(ABOUT))
if flow[1] ~= ARGV.flow_uid or flow[7] then return refuse('FLOW_GONE', 'the flow') end
if flow[4] == ARGV.commit then return {-tonumber(flow[8])} end
if flow[2] ~= ARGV.owner or flow[3] ~= ARGV.epoch then
  return refuse('FENCED', 'owner ' .. (flow[2] or '') .. ' epoch ' .. (flow[3] or ''))
end
-- Compares the owner's last change as the fence: inputs of others raise the flow's revision too.
if flow[4] ~= ARGV.last_commit then return refuse('FENCED', 'last commit ' .. (flow[4] or '')) end
if flow[5] ~= 'started' then return refuse('FENCED', 'the flow is ' .. flow[5]) end
-- Uses the reserve for a flow that is cancelled: it can end and be removed, however full Redis is. Other flows wait for room.
local fields = {unpack(flow, 12, 16)}
if (fields[5] or '') ~= '' then use_reserve() end

-- Builds the results of the jobs of the flow's message, as JSON. A result that makes it too long is left out.
local function outcome(message)
  local flow = redis.call('HMGET', KEYS.flow, 'caller_id', 'first_job_id', 'node_count')
  local jobs, bytes, first = {}, 0, tonumber(flow[2])
  for id = first, first + tonumber(flow[3]) - 1 do
    id = string.format('%.0f', id)
    local name = string.match(redis.call('HGET', KEYS.nodes, id) or '', '"name":"([%w_-]+)"') or id
    local key = 'job:' .. flow[1] .. ':' .. id
    local job = redis.call('HMGET', ARGV.prefix .. key, 'status', 'result')
    local result = job[2] or '{}'
    bytes = bytes + #result
    result = bytes <= 262144 and ',"result":' .. result or ''
    jobs[#jobs + 1] = '"' .. (string.match(name, '^job%-(%d+)$') or name) .. '":{"job":"' .. key .. '","status":"'
      .. (job[1] or '') .. '"' .. result .. '}'
  end
  return '{"message":"' .. message .. '","flow_id":' .. ARGV.flow .. ',"status":"' .. ARGV.status .. '","jobs":{'
    .. table.concat(jobs, ',') .. '}}', flow[1]
end

-- Writes the flow's end into the message that the flow was made of, and tells the sender.
local function tell(revision, message)
  local key = ARGV.prefix .. message
  local ended = 'flow ' .. ARGV.flow .. ' has ended: ' .. told(ARGV.status)
  -- Skips a message that its program has replaced under this key since.
  if is_hash(key) and redis.call('HGET', key, 'flow_id') == ARGV.flow then
    local finished = ARGV.status == 'finished'
    redis.call('HSET', key, 'status', finished and 'processed' or 'error', 'error', finished and '' or ended,
      'updated_at', ARGV.now, 'revision', revision, 'logs', logged(redis.call('HGET', key, 'logs'), ended))
    -- The router that waited for the flow may have given the message up; it has arrived all the same.
    redis.call('ZREM', ARGV.prefix .. 'dead_letters', key)
    emit_message(revision, key, finished and 'processed' or 'error')
    if redis.call('ZSCORE', ARGV.prefix .. 'letters', key) then done(revision, key) end
  end
  local text, caller = outcome(message)
  local id, told = new_message(ARGV.prefix, '0')
  if not id then return end
  redis.call('HSET', told, 'id', id, 'revision', revision, 'caller_id', '0', 'context_id', ARGV.context, 'flow_id', ARGV.flow,
    'to', caller, 'target_context', ARGV.context, 'topic', message, 'from_pubkey', '', 'origin', '', 'signature', '',
    'message', text, 'message_type', 'chat', 'message_format_type', 'text', 'timeout', '0', 'timeout_ack', '0',
    'timeout_result', '0', 'nodes', '[]', 'logs', '[]', 'created_at', ARGV.now, 'updated_at', ARGV.now, 'error', '',
    'status', 'acknowledged', 'transport_id', '', 'transport_status', 'delivered', 'router', '', 'verified', 'false')
  redis.call('ZADD', ARGV.prefix .. 'letters', revision, told)
  redis.call('LPUSH', ARGV.prefix .. 'msg_in', told)
  redis.call('LTRIM', ARGV.prefix .. 'msg_in', 0, 9999)
  -- Stores the message even if its inbox is full, and its key stands in `msg_in`.
  local has_room = has_place(caller, #text)
  if has_room then put_in(caller, told, revision, #text) end
  emit_message(revision, told, 'acknowledged')
  if not has_room then done(revision, told) end
  hint('inbox:' .. caller)
end

local revision = raise()
local N, M, E, B = tonumber(ARGV.nodes), tonumber(ARGV.messages), tonumber(ARGV.events), tonumber(ARGV.blobs)
local A, C = tonumber(ARGV.awaited), tonumber(ARGV.ended)
local at, jobs_at, kind = ARGV_NAMED, KEYS_NAMED, ''
if N > 0 then
  local nodes = {}
  for n = 1, N do
    nodes[2 * n - 1] = ARGV[at + 1]
    nodes[2 * n] = ARGV[at + 2]
    if ARGV[at + 4] == '' then
      redis.call('HSET', KEYS[jobs_at + n], 'status', ARGV[at + 3], 'updated_at', ARGV.now)
    else
      redis.call('HSET', KEYS[jobs_at + n], 'status', ARGV[at + 3], 'updated_at', ARGV.now, 'result', ARGV[at + 4])
    end
    at = at + 4
  end
  redis.call('HSET', KEYS.nodes, unpack(nodes))
end
if M > 0 and ARGV.router == '' then kind = 'out' end
-- `at` is the index before the next argument.
at = write_messages(M, jobs_at + N, at + 1, {context = ARGV.context, flow = ARGV.flow, router = ARGV.router, hold_end = ARGV.hold_end,
  revision = revision, carriers = KEYS.carriers, out = KEYS.out, held = KEYS.held}) - 1
for e = 1, E do emit(revision, ARGV[at + e]) end
at = at + E
for b = 1, B do
  local blob = KEYS[jobs_at + N + M + 2 * b - 1]
  if redis.call('EXISTS', blob) == 1 then
    redis.call('SADD', KEYS[jobs_at + N + M + 2 * b], KEYS[jobs_at + tonumber(ARGV[at + b])])
    redis.call('ZREM', KEYS.blob_idle, string.match(blob, '%x+$'))
  end
end
for c = 1, C do
  local key = KEYS[jobs_at + N + M + 2 * B + A + c]
  -- Does not create a message again that is gone, and ignores what a program has left in its place, or in `open`: anything that is
  -- not a hash has no status.
  local message = redis.pcall('HMGET', key, 'status', 'logs')
  local status = message[1]
  local jobs = ARGV[at + B + c]
  local _, others = string.gsub(jobs, ' ', '')
  local open = status and redis.pcall('HINCRBY', key, 'open', -others - 1)
  if type(open) == 'number' and open <= 0 and status == 'acknowledged' then
    redis.call('HSET', key, 'status', 'processed', 'updated_at', ARGV.now, 'revision', revision)
  elseif type(open) == 'number' and open <= 0 and status == 'dispatched' and redis.call('ZSCORE', KEYS.held, key) then
    -- Settles the message: the last of its jobs has ended before its router reported its arrival, so nothing more will come.
    redis.call('HSET', key, 'status', 'processed', 'transport_status', 'read', 'updated_at', ARGV.now, 'revision', revision,
      'logs', logged(message[2], 'acknowledged'), 'nodes', '[]')
  elseif type(open) == 'number' and open > 0 and status == 'dispatched' then
    -- The router that gets the message after this sends only the other jobs.
    redis.call('HSET', key, 'ended', (redis.call('HGET', key, 'ended') or '') .. ' ' .. jobs)
  end
end
local ends = ARGV.status ~= '' and ARGV.status ~= 'started'
local changed = {'revision', revision, 'last_commit', ARGV.commit, 'last_commit_revision', revision, 'updated_at', ARGV.now}
if ARGV.status ~= '' then
  redis.call('HSET', KEYS.flow, 'status', ARGV.status, 'result', ARGV.result, 'result_truncated', ARGV.is_incomplete,
    'counted', ends and '' or flow[11] or '', unpack(changed))
  list_flow(ARGV.flow, ARGV.status, flow[5])
  -- Watchers of its end read the flow only if its result is long.
  local is_told = ends and ARGV.is_incomplete ~= 'true' and #ARGV.result <= 1024
  emit_flow(revision, ARGV.flow, ARGV.status, flow[6], fields, is_told and ARGV.result)
else
  redis.call('HSET', KEYS.flow, unpack(changed))
  if E == 0 then emit_flow(revision, ARGV.flow, 'started', flow[6], fields) end
end
-- Uncounts the flow only if it was counted: one from an earlier version may never have been.
if ends and flow[11] == '1' then count_open(-1, -tonumber(flow[10])) end
local me = ARGV.flow .. '-' .. ARGV.flow_uid
local taken = tonumber(ARGV.inputs_taken)
-- Mostly a flow has neither inputs nor others that wait for it.
local has_company = ends and redis.call('EXISTS', KEYS.inputs, KEYS.waiters) > 0
if has_company then
  redis.call('UNLINK', KEYS.inputs)
elseif not ends and taken > 0 then
  redis.call('LTRIM', KEYS.inputs, taken, -1)
end
-- New arrivals keep the flow from resting: an input, or the end of a flow that it waits for.
local rests = ARGV.rests == '1' and redis.call('LLEN', KEYS.inputs) == 0
for a = 1, A do
  rests = rests and redis.call('SISMEMBER', KEYS[jobs_at + N + M + 2 * B + a], me) == 1
end
if ends or rests then
  redis.call('SREM', KEYS.flows_active, me)
else
  redis.call('SADD', KEYS.flows_active, me)
end
if not ends and ARGV.due ~= '' then
  redis.call('ZADD', KEYS.due, ARGV.due, me)
else
  redis.call('ZREM', KEYS.due, me)
end
if ends then
  redis.call('SADD', own('flows_unmeasured'), ARGV.flow)
  if has_company then wake(KEYS.waiters, KEYS.flows_active) end
  if flow[9] and flow[9] ~= '' then tell(revision, flow[9]) end
end
hint(kind)
return {revision, written}
