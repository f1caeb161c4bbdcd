-- Creates a flow, reserves its job ids, and remembers the request. When its nodes come along the flow is started as well, and may
-- have made its first step.
-- KEYS 4 flow, 5 flows, 6 its nodes, 7 flows_active, 8 blob_idle, 9 its messages, 10 msg_out, 11 msg_out_coordinator, 12 due, then
--      B pairs blob and blob_refs, then N jobs, then M messages, then request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 flow id, 7 caller, 8 how many nodes,
--      9 request hash, 10 seconds to remember it, 11 flow uid, 12 whether we chose the id, 13 the message that it is made of
--      ('' for none), 14 the revision at which that was taken up ('' for any), 15 how many flows that have not ended there may be,
--      16 how many nodes of those, 17 how many flows, 18 the first job id that the nodes were given, 19 context id, 20 due in Unix
--      seconds ('' for never), 21 router ('' for none), 22 end of its hold, 23 B, 24 N, 25 M, 26 E, 27 R, then R pairs
--      (number of a blob, number of a job that refers to it), then N times: job id, node, F, F times field and value; then M messages
--      as `write_messages` has them; then E events of the step; then fields of the flow
-- Gives 1, revision, first job id, what was emitted; or 0, flow id, flow uid, first job id of the flow that the request, or the message, was
-- given before.
local no, context_revision = closed()
if no then return no end
-- Also of what was made before: nobody is told of that who may no longer ask for it.
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local FIXED_KEYS, FIXED_ARGUMENTS = 12, 27
local blobs, nodes, messages = tonumber(ARGV[23]), tonumber(ARGV[24]), tonumber(ARGV[25])
local events, refs = tonumber(ARGV[26]), tonumber(ARGV[27])
local jobs_at = FIXED_KEYS + 2 * blobs
local request = KEYS[jobs_at + nodes + messages + 1]
local before, other = asked_before(request, ARGV[9])
if other then return other end
if before then return {0, unpack(redis.call('HMGET', request, 'flow_id', 'flow_uid', 'first_job_id'))} end
local message = ARGV[13] ~= '' and own(ARGV[13])
-- Its program may have written another one under this key since.
if message and not (is_hash(message) and kept_in(message, own('letters'))
  and (ARGV[14] == '' or redis.call('HGET', message, 'taken_revision') == ARGV[14])) then
  message = false
end
-- One that is sent again has its flow, however long ago that was made.
local flow = message and string.match(redis.call('HGET', message, 'flow_id') or '', '^%d+$')
if flow then
  local made = redis.call('HMGET', own('flow:' .. flow), 'uid', 'first_job_id', 'message', 'deleting')
  if made[1] and made[3] == ARGV[13] and not made[4] then return {0, flow, made[1], made[2]} end
end
if redis.call('EXISTS', KEYS[4]) == 1 then
  return refuse('FLOW_EXISTS', redis.call('HGET', KEYS[2], 'flow') or '0')
end
local counters = redis.call('HMGET', KEYS[2], 'flow', 'job:' .. ARGV[7], 'flows_open', 'jobs_open', 'revision')
local last, count = tonumber(counters[2] or '0'), tonumber(ARGV[8])
-- Ids that others were given meanwhile. Some may be left out: of flows that were refused.
local first = nodes > 0 and tonumber(ARGV[18]) or last + 1
if first <= last then return refuse('JOB_IDS_GIVEN', string.format('%.0f', last)) end
if first + count - 1 > ID_MAX then return refuse('IDS_EXHAUSTED', 'the caller has no job ids left') end
local open, jobs_open = tonumber(counters[3] or '0') + 1, tonumber(counters[4] or '0') + count
local flows = redis.call('ZCARD', KEYS[5])
local full = beyond('context_flows_open_max', ARGV[15], open) or beyond('context_jobs_open_max', ARGV[16], jobs_open)
  or beyond('context_flows_max', ARGV[17], flows + 1)
if full then return full end
local missing = without_blob(blobs, FIXED_KEYS)
if missing then return missing end

-- Each change of a flow has a revision of its own, also where two are made at once.
local created = tonumber(counters[5] or '0') + 1
local revision = nodes > 0 and created + 1 or created
latest = revision
audit(created)
-- An id that the caller chose moves nothing: a large one would leave no others.
local greatest = counters[1] or '0'
if ARGV[12] == '1' and tonumber(ARGV[6]) > tonumber(greatest) then greatest = ARGV[6] end
redis.call('HSET', KEYS[2], 'revision', string.format('%.0f', revision), 'flow', greatest,
  'job:' .. ARGV[7], string.format('%.0f', first + count - 1),
  'flows_open', string.format('%.0f', open), 'jobs_open', string.format('%.0f', jobs_open))
local at = FIXED_ARGUMENTS + 1 + 2 * refs
if nodes > 0 then at = write_nodes(KEYS[6], nodes, jobs_at, at) end
refer(KEYS[8], blobs, FIXED_KEYS, refs, jobs_at, FIXED_ARGUMENTS + 1)
local events_at = write_messages(messages, jobs_at + nodes, at, {context = ARGV[19], flow = ARGV[6], router = ARGV[21],
  hold_end = ARGV[22], revision = revision, carriers = KEYS[9], out = KEYS[10], held = KEYS[11]})
local fields_at = events_at + events
redis.call('HSET', KEYS[4], 'revision', revision, 'first_job_id', first, 'counted', 1,
  'last_commit_revision', nodes > 0 and revision or 0, unpack(ARGV, fields_at))
if message then redis.call('HSET', message, 'flow_id', ARGV[6]) end
-- From the first flow on each stands in the list of its status.
if flows == 0 then redis.call('HSET', KEYS[2], 'flows_listed', 1) end
redis.call('ZADD', KEYS[5], created, ARGV[6])
redis.call('ZADD', own('flows:' .. (nodes > 0 and 'started' or 'created')), created, ARGV[6])
remember(request, ARGV[9], ARGV[10], 'flow_id', ARGV[6], 'flow_uid', ARGV[11], 'first_job_id', first)
local of, fields = {}, {}
for i = fields_at, #ARGV - 1, 2 do of[ARGV[i]] = ARGV[i + 1] end
for i, field in ipairs(ABOUT) do fields[i] = of[field] or '' end
emit_flow(created, ARGV[6], 'created', 1, fields)
if nodes > 0 then
  emitted = 0
  redis.call('SADD', KEYS[7], ARGV[6] .. '-' .. ARGV[11])
  if ARGV[20] ~= '' then redis.call('ZADD', KEYS[12], ARGV[20], ARGV[6] .. '-' .. ARGV[11]) end
  emit_flow(revision, ARGV[6], 'started', 1, fields)
  for e = events_at, fields_at - 1 do emit(revision, ARGV[e]) end
end
hint(messages > 0 and ARGV[21] == '' and 'out' or '')
return {1, revision, first, written}
