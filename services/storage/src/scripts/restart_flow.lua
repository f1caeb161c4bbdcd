-- Starts an ended flow again, without an owner yet, and remembers the request.
-- KEYS = flow flows_active
-- ARGV = context_revision flow flow_uid generation rerun environment now_millis last_commit request_hash request_secs prefix
-- ARGV = expected_revision flows_open_max jobs_open_max traceparent
--
-- Permission was decided on `context_revision` of the context. `generation` is the one that ended, `rerun` the choice of nodes,
-- `last_commit` what the first commit builds on; `prefix` is what the keys of this context begin with. `expected_revision` is
-- that of the flow, '' for any. There may be `flows_open_max` flows that have not ended, and `jobs_open_max` nodes of those.
-- `traceparent` is the trace context of the new run, '' for none.
-- After the keys follow with a request id the request, and the jobs that have new signatures; after the arguments follow those
-- signatures.
-- Returns the new revision; 0 when the same request had started it before.
local no, context_revision = closed()
if no then return no end
local signed = #ARGV - ARGV_NAMED
local request = #KEYS - signed > KEYS_NAMED and KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return 0 end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'status', 'generation', 'epoch', 'deadline_secs', 'deleting',
  'message', 'revision', 'node_count', 'bytes')
if flow[1] ~= ARGV.flow_uid or flow[6] then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
if ARGV.expected_revision ~= '' and flow[8] ~= ARGV.expected_revision then
  return refuse('FLOW_CHANGED', 'flow ' .. ARGV.flow .. ' is at revision ' .. flow[8])
end
if flow[2] == 'created' or flow[2] == 'started' then
  return refuse('FLOW_NOT_ENDED', 'flow ' .. ARGV.flow .. ' is ' .. told(flow[2]))
end
if flow[3] ~= ARGV.generation then
  return refuse('FLOW_CHANGED', 'flow ' .. ARGV.flow .. ' was run again meanwhile: its generation is ' .. flow[3])
end
local open = redis.call('HMGET', KEYS.ids, 'flows_open', 'jobs_open')
local full = beyond('context_flows_open_max', ARGV.flows_open_max, tonumber(open[1] or '0') + 1)
  or beyond('context_jobs_open_max', ARGV.jobs_open_max, tonumber(open[2] or '0') + tonumber(flow[9]))
if full then return full end

local revision = raise()
count_open(1, tonumber(flow[9]))
local generation = string.format('%.0f', tonumber(flow[3]) + 1)
redis.call('HINCRBY', KEYS.flow, 'epoch', 1)
redis.call('HSET', KEYS.flow, 'status', 'started', 'generation', generation, 'owner', '', 'last_commit', ARGV.last_commit,
  'last_commit_revision', revision, 'env_vars', ARGV.environment, 'rerun', ARGV.rerun, 'cancel_requested_time', '',
  'cancel_grace_secs', '0', 'result', '{}', 'result_truncated', 'false', 'deadline', deadline(ARGV.now_millis, flow[5]),
  'updated_at', ARGV.now, 'revision', revision, 'counted', 1, 'bytes', '')
leave_ended(ARGV.flow, flow[10])
if ARGV.traceparent == '' then
  redis.call('HDEL', KEYS.flow, 'traceparent')
else
  redis.call('HSET', KEYS.flow, 'traceparent', ARGV.traceparent)
end
local me = ARGV.flow .. '-' .. ARGV.flow_uid
redis.call('SADD', KEYS.flows_active, me)
list_flow(ARGV.flow, 'started', flow[2])
for i = 1, signed do
  local job = KEYS[#KEYS - signed + i]
  if redis.call('EXISTS', job) == 1 then
    redis.call('HSET', job, 'signature', ARGV[ARGV_NAMED + i], 'updated_at', ARGV.now)
  end
end
remember(request, ARGV.request_hash, ARGV.request_secs)
-- Reopens the message that the flow was made of: it waits for the flow's end again.
local message = flow[7] and flow[7] ~= '' and ARGV.prefix .. flow[7]
if message and is_hash(message) and redis.call('HGET', message, 'flow_id') == ARGV.flow then
  redis.call('ZREM', own('letters_done'), message)
  redis.call('HSET', message, 'status', 'acknowledged', 'error', '', 'updated_at', ARGV.now, 'revision', revision)
  emit_message(revision, message, 'acknowledged')
end
emit_flow(revision, ARGV.flow, 'started', generation)
hint('')
touch(me)
return revision
