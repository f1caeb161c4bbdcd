-- Creates a flow, reserves its job ids, and remembers the request. When its nodes come along the flow is started as well.
-- KEYS 4 flow, 5 flows, 6 its nodes, 7 flows_active, 8 blob_idle, then B pairs blob and blob_refs, then N jobs, then request (only
--      with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 flow id, 7 caller, 8 how many nodes,
--      9 request hash, 10 seconds to remember it, 11 flow uid, 12 whether we chose the id, 13 the message that it is made of
--      ('' for none), 14 the revision at which that was taken up ('' for any), 15 how many flows that have not ended there may be,
--      16 how many nodes of those, 17 how many flows, 18 the first job id that the nodes were given, 19 B, 20 N, 21 R, then R pairs
--      (number of a blob, number of a job that refers to it), then N times: job id, node, F, F times field and value; then fields
--      of the flow
-- Gives 1, revision, first job id; or 0, flow id, flow uid, first job id of the flow that the request, or the message, was
-- given before.
local no, context_revision = closed()
if no then return no end
local blobs, nodes, refs = tonumber(ARGV[19]), tonumber(ARGV[20]), tonumber(ARGV[21])
local jobs_at = 8 + 2 * blobs
local request = KEYS[jobs_at + nodes + 1]
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
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if redis.call('EXISTS', KEYS[4]) == 1 then
  return refuse('FLOW_EXISTS', redis.call('HGET', KEYS[2], 'flow') or '0')
end
local counters = redis.call('HMGET', KEYS[2], 'flow', 'job:' .. ARGV[7], 'flows_open', 'jobs_open')
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
local missing = without_blob(blobs, 8)
if missing then return missing end

-- Each change of a flow has a revision of its own, also where two are made at once.
local created = raise()
local revision = nodes > 0 and redis.call('HINCRBY', KEYS[2], 'revision', 1) or created
-- An id that the caller chose moves nothing: a large one would leave no others.
local greatest = counters[1] or '0'
if ARGV[12] == '1' and tonumber(ARGV[6]) > tonumber(greatest) then greatest = ARGV[6] end
redis.call('HSET', KEYS[2], 'flow', greatest, 'job:' .. ARGV[7], string.format('%.0f', first + count - 1),
  'flows_open', string.format('%.0f', open), 'jobs_open', string.format('%.0f', jobs_open))
local fields_at = 22 + 2 * refs
if nodes > 0 then fields_at = write_nodes(KEYS[6], nodes, jobs_at, fields_at) end
refer(KEYS[8], blobs, 8, refs, jobs_at, 22)
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
  emit_flow(revision, ARGV[6], 'started', 1, fields)
end
hint('')
return {1, revision, first}
