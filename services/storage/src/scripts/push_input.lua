-- Stores an input for a flow's owner, and remembers the request.
-- KEYS = flow inputs signals flows_active nodes
-- ARGV = context_revision flow flow_uid input request_hash request_secs inputs_max signals_max kind
--
-- Permission was decided on `context_revision` of the context. At most `inputs_max` inputs may wait, and a flow has at most
-- `signals_max` signals. `kind` is `signal`, `cancel`, `cancel_node` or `other`. With a request id, the request follows the
-- keys. After the arguments follow with `signal` its name and its payload, with `cancel` the seconds of grace and the
-- event, with `cancel_node` the node's job.
-- Returns the flow's revision, or 0 when that was not raised; and 1 if nothing changed.
local no, context_revision = closed()
if no then return no end
local request = KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return {0, tonumber(redis.call('HGET', request, 'unchanged'))} end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'status', 'cancel_requested_time', 'cancel_grace_secs', 'deleting',
  'generation')
if flow[1] ~= ARGV.flow_uid or flow[5] then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
local kind, started, news = ARGV.kind, flow[2] == 'started', true
local subject, text = unpack(ARGV, ARGV_NAMED + 1)
if kind == 'cancel' or kind == 'cancel_node' then use_reserve() end
if kind == 'signal' then
  news = redis.call('HEXISTS', KEYS.signals, subject) == 0
  local count = redis.call('HLEN', KEYS.signals)
  if news and count >= tonumber(ARGV.signals_max) then return refuse('TOO_MANY_SIGNALS', tostring(count + 1)) end
elseif kind == 'cancel' then
  local sooner = flow[3] == '' or tonumber(subject) < tonumber(flow[4] or '0')
  news = sooner and (started or (flow[2] == 'created' and flow[3] == ''))
elseif kind == 'cancel_node' then
  local node = redis.call('HGET', KEYS.nodes, subject)
  node = node and cjson.decode(node)
  local ended = node and (node.state == 'completed' or node.state == 'failed' or node.state == 'cancelled'
    or node.state == 'skipped')
  -- Stores the input for a node that ended in an earlier generation: it may be about to run again, and the flow's owner knows.
  news = not ended or (started and string.format('%.0f', node.generation) ~= flow[6])
end
if news and not started and kind ~= 'signal' and kind ~= 'cancel' then
  return refuse('FLOW_NOT_STARTED', 'flow ' .. ARGV.flow .. ' is ' .. told(flow[2]))
end
if news and started then
  local count = redis.call('LLEN', KEYS.inputs)
  if count >= tonumber(ARGV.inputs_max) then return refuse('TOO_MANY_INPUTS', tostring(count + 1)) end
end

local revision = 0
if news then
  if kind ~= 'cancel' then audit(0) end
  if kind == 'signal' then
    redis.call('HSET', KEYS.signals, subject, text)
  elseif kind == 'cancel' then
    revision = raise()
    local since = flow[3] == '' and ARGV.now or flow[3]
    redis.call('HSET', KEYS.flow, 'cancel_requested_time', since, 'cancel_grace_secs', subject, 'updated_at', ARGV.now,
      'revision', revision)
    emit(revision, text)
    emit_flow(revision, ARGV.flow, flow[2], flow[6])
    -- A flow that was never started is over by this.
    if not started then redis.call('SADD', own('flows_unmeasured'), ARGV.flow) end
    hint('')
  end
  if started then
    local me = ARGV.flow .. '-' .. ARGV.flow_uid
    redis.call('RPUSH', KEYS.inputs, ARGV.input)
    redis.call('SADD', KEYS.flows_active, me)
    touch(me)
  end
end
local unchanged = news and 0 or 1
remember(request, ARGV.request_hash, ARGV.request_secs, 'unchanged', unchanged)
return {revision, unchanged}
