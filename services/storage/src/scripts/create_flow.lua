-- Creates a flow, reserves its job ids, and remembers the request. If its nodes are included, the flow is started as well, and may
-- have made its first step.
-- KEYS = flow flows nodes flows_active blob_idle carriers out held due
-- ARGV = context_revision flow caller node_count request_hash request_secs flow_uid is_our_id message taken_revision
-- ARGV = flows_open_max jobs_open_max flows_max first_job context due router hold_end blobs nodes messages events refs
--
-- Permission was decided on `context_revision` of the context. `is_our_id` tells if we chose the flow's id; `message` is the one
-- that it is made of, '' for none, and `taken_revision` the revision at which that was taken up, '' for any. `first_job` is the
-- first job id that its nodes were given. `carriers` are the flow's messages; `due` is in Unix seconds, '' for never, `router` ''
-- for none. `blobs`, `nodes`, `messages`, `events` and `refs` are their numbers. After the keys follow for each blob its key and
-- its blob_refs, the jobs of the nodes, the messages, and with a request id the request. After the arguments follow for each
-- reference the number of a blob and of the job that refers to it; for each node its job id, itself, F, and F times field and
-- value; the messages as `write_messages` has them; the events of the step; fields of the flow.
-- Returns 1, revision, first job id, what was emitted; or 0, flow id, flow uid, first job id of the flow that the request, or the
-- message, was given before.
local no, context_revision = closed()
if no then return no end
-- Refuses repeated requests too: an actor that has lost its permission gets no answer to them.
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local blobs, nodes, messages = tonumber(ARGV.blobs), tonumber(ARGV.nodes), tonumber(ARGV.messages)
local events, refs = tonumber(ARGV.events), tonumber(ARGV.refs)
local jobs_at = KEYS_NAMED + 2 * blobs
local request = KEYS[jobs_at + nodes + messages + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return {0, unpack(redis.call('HMGET', request, 'flow_id', 'flow_uid', 'first_job_id'))} end
local message = ARGV.message ~= '' and own(ARGV.message)
-- Skips a message that its program has replaced under this key since.
if message and not (is_hash(message) and kept_in(message, own('letters'))
  and (ARGV.taken_revision == '' or redis.call('HGET', message, 'taken_revision') == ARGV.taken_revision)) then
  message = false
end
-- Returns the existing flow of a message that is sent again, however old that flow is.
local flow = message and string.match(redis.call('HGET', message, 'flow_id') or '', '^%d+$')
if flow then
  local made = redis.call('HMGET', own('flow:' .. flow), 'uid', 'first_job_id', 'message', 'deleting')
  if made[1] and made[3] == ARGV.message and not made[4] then return {0, flow, made[1], made[2]} end
end
if redis.call('EXISTS', KEYS.flow) == 1 then
  return refuse('FLOW_EXISTS', redis.call('HGET', KEYS.ids, 'flow') or '0')
end
local counters = redis.call('HMGET', KEYS.ids, 'flow', 'job:' .. ARGV.caller, 'flows_open', 'jobs_open', 'revision')
local last, count = tonumber(counters[2] or '0'), tonumber(ARGV.node_count)
-- Refuses ids that other flows were given meanwhile. Ids of refused flows stay unused.
local first = nodes > 0 and tonumber(ARGV.first_job) or last + 1
if first <= last then return refuse('JOB_IDS_GIVEN', string.format('%.0f', last)) end
if first + count - 1 > ID_MAX then return refuse('IDS_EXHAUSTED', 'the caller has no job ids left') end
local open, jobs_open = tonumber(counters[3] or '0') + 1, tonumber(counters[4] or '0') + count
local flows = redis.call('ZCARD', KEYS.flows)
local full = beyond('context_flows_open_max', ARGV.flows_open_max, open) or beyond('context_jobs_open_max', ARGV.jobs_open_max, jobs_open)
  or beyond('context_flows_max', ARGV.flows_max, flows + 1)
if full then return full end
local missing = without_blob(blobs, KEYS_NAMED)
if missing then return missing end

-- Gives each change of a flow a revision of its own, even if two are made at once.
local created = tonumber(counters[5] or '0') + 1
local revision = nodes > 0 and created + 1 or created
latest = revision
audit(created)
-- Leaves the counter alone for an id that the caller chose: a large one would leave no others.
local greatest = counters[1] or '0'
if ARGV.is_our_id == '1' and tonumber(ARGV.flow) > tonumber(greatest) then greatest = ARGV.flow end
redis.call('HSET', KEYS.ids, 'revision', string.format('%.0f', revision), 'flow', greatest,
  'job:' .. ARGV.caller, string.format('%.0f', first + count - 1),
  'flows_open', string.format('%.0f', open), 'jobs_open', string.format('%.0f', jobs_open))
local at = ARGV_NAMED + 1 + 2 * refs
if nodes > 0 then at = write_nodes(KEYS.nodes, nodes, jobs_at, at) end
refer(KEYS.blob_idle, blobs, KEYS_NAMED, refs, jobs_at, ARGV_NAMED + 1)
local events_at = write_messages(messages, jobs_at + nodes, at, {context = ARGV.context, flow = ARGV.flow, router = ARGV.router,
  hold_end = ARGV.hold_end, revision = revision, carriers = KEYS.carriers, out = KEYS.out, held = KEYS.held})
local fields_at = events_at + events
redis.call('HSET', KEYS.flow, 'revision', revision, 'first_job_id', first, 'counted', 1,
  'last_commit_revision', nodes > 0 and revision or 0, unpack(ARGV, fields_at))
if message then redis.call('HSET', message, 'flow_id', ARGV.flow) end
-- Marks the flows as listed by status, which holds from the first flow on.
if flows == 0 then redis.call('HSET', KEYS.ids, 'flows_listed', 2) end
redis.call('ZADD', KEYS.flows, created, ARGV.flow)
redis.call('ZADD', own('flows:' .. (nodes > 0 and 'started' or 'created')), created, ARGV.flow)
remember(request, ARGV.request_hash, ARGV.request_secs, 'flow_id', ARGV.flow, 'flow_uid', ARGV.flow_uid, 'first_job_id', first)
local of, fields = {}, {}
for i = fields_at, #ARGV - 1, 2 do of[ARGV[i]] = ARGV[i + 1] end
for i, field in ipairs(ABOUT) do fields[i] = of[field] or '' end
emit_flow(created, ARGV.flow, 'created', 1, fields)
if nodes > 0 then
  emitted = 0
  redis.call('SADD', KEYS.flows_active, ARGV.flow .. '-' .. ARGV.flow_uid)
  if ARGV.due ~= '' then redis.call('ZADD', KEYS.due, ARGV.due, ARGV.flow .. '-' .. ARGV.flow_uid) end
  emit_flow(revision, ARGV.flow, 'started', 1, fields)
  for e = events_at, fields_at - 1 do emit(revision, ARGV[e]) end
end
hint(messages > 0 and ARGV.router == '' and 'out' or '')
return {1, revision, first, written}
