-- Keeps something for a flow's owner to take up, and remembers the request.
-- KEYS 4 flow, 5 its inputs, 6 its signals, 7 flows_active, 8 its nodes, 9 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 flow id, 7 flow uid, 8 input, 9 request hash,
--      10 seconds to remember it, 11 how many inputs may wait,
--      12 `signal`, 13 its name, 14 what is kept with it, 15 how many signals a flow may have; or
--      12 `cancel`, 13 seconds of grace, 14 event; or
--      12 `cancel_node`, 13 its job; or
--      12 `other`
-- Gives the flow's revision, or 0 when that was not raised; and whether nothing changed.
local no, context_revision = closed()
if no then return no end
local before, other = asked_before(KEYS[9], ARGV[9])
if other then return other end
if before then return {0, tonumber(redis.call('HGET', KEYS[9], 'unchanged'))} end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'status', 'cancel_requested_time', 'cancel_grace_secs', 'deleting',
  'generation')
if flow[1] ~= ARGV[7] or flow[5] then return refuse('FLOW_GONE', 'flow ' .. ARGV[6]) end
local kind, started, news = ARGV[12], flow[2] == 'started', true
if kind == 'cancel' or kind == 'cancel_node' then use_reserve() end
if kind == 'signal' then
  news = redis.call('HEXISTS', KEYS[6], ARGV[13]) == 0
  local count = redis.call('HLEN', KEYS[6])
  if news and count >= tonumber(ARGV[15]) then return refuse('TOO_MANY_SIGNALS', tostring(count + 1)) end
elseif kind == 'cancel' then
  local sooner = flow[3] == '' or tonumber(ARGV[13]) < tonumber(flow[4] or '0')
  news = sooner and (started or (flow[2] == 'created' and flow[3] == ''))
elseif kind == 'cancel_node' then
  local node = redis.call('HGET', KEYS[8], ARGV[13])
  node = node and cjson.decode(node)
  local ended = node and (node.state == 'completed' or node.state == 'failed' or node.state == 'cancelled'
    or node.state == 'skipped')
  -- One that ended in an earlier generation may be about to run again: the flow's owner knows.
  news = not ended or (started and string.format('%.0f', node.generation) ~= flow[6])
end
if news and not started and kind ~= 'signal' and kind ~= 'cancel' then
  return refuse('FLOW_NOT_STARTED', 'flow ' .. ARGV[6] .. ' is ' .. told(flow[2]))
end
if news and started then
  local count = redis.call('LLEN', KEYS[5])
  if count >= tonumber(ARGV[11]) then return refuse('TOO_MANY_INPUTS', tostring(count + 1)) end
end

local revision = 0
if news then
  if kind ~= 'cancel' then audit(0) end
  if kind == 'signal' then
    redis.call('HSET', KEYS[6], ARGV[13], ARGV[14])
  elseif kind == 'cancel' then
    revision = raise()
    local since = flow[3] == '' and ARGV[3] or flow[3]
    redis.call('HSET', KEYS[4], 'cancel_requested_time', since, 'cancel_grace_secs', ARGV[13], 'updated_at', ARGV[3],
      'revision', revision)
    emit(revision, ARGV[14])
    emit_flow(revision, ARGV[6], flow[2], flow[6])
    hint('')
  end
  if started then
    local me = ARGV[6] .. '-' .. ARGV[7]
    redis.call('RPUSH', KEYS[5], ARGV[8])
    redis.call('SADD', KEYS[7], me)
    touch(me)
  end
end
local unchanged = news and 0 or 1
remember(KEYS[9], ARGV[9], ARGV[10], 'unchanged', unchanged)
return {revision, unchanged}
