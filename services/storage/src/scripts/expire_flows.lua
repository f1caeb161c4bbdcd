-- Removes ended flows beyond the bounds of what is kept, the oldest first, each whole.
-- KEYS = flows_ended blob_idle held dead_letters flows_active
-- ARGV = ended_before flows_max bytes_max spared_from keys_max
--
-- A flow goes that ended before `ended_before`, or while there are more than `flows_max`, or more than `bytes_max` bytes of them; for
-- its bytes only if it ended before `spared_from`, '' for any. About `keys_max` keys are removed. A flow of more keys is left, as
-- is one that was never started or whose removal has begun: they are removed in parts.
-- Returns how many were removed; the id of a flow that is next and was left, '' for none; 1 if more are due now; then for
-- each message of the removed flows the uid of its flow, its runner record, and the job keys that it carried.
local no = closed()
if no then return no end
use_reserve()

local KEYS_MAX, removed, touched, revision, forgets = tonumber(ARGV.keys_max), 0, 0, nil, {}
local count, bytes = redis.call('ZCARD', KEYS.flows_ended), tonumber(redis.call('HGET', KEYS.ids, 'ended_flow_bytes') or '0')
local ended_before, flows_max, bytes_max = tonumber(ARGV.ended_before), tonumber(ARGV.flows_max), tonumber(ARGV.bytes_max)
local spared_from = tonumber(ARGV.spared_from)

local function is_due(ended)
  return ended < ended_before or count > flows_max or (bytes > bytes_max and (not spared_from or ended < spared_from))
end

local function remove_node(flow, caller, job, node)
  local key, names = own('job:' .. caller .. ':' .. job), {}
  dereference(KEYS.blob_idle, key, {node, unpack(redis.call('HMGET', key, 'files', 'outputs'))})
  if redis.call('HEXISTS', key, 'script_size') == 1 then dereference(KEYS.blob_idle, key, {redis.call('HGET', key, 'script')}) end
  names[1] = key
  for attempt = 1, tonumber(string.match(node, '"attempt":(%d+)') or '0') do
    names[attempt + 1] = own('log:' .. flow .. ':' .. job .. ':' .. string.format('%.0f', attempt))
  end
  redis.call('UNLINK', unpack(names))
end

local function remove_messages(flow_uid, carriers)
  for _, message in ipairs(redis.call('SMEMBERS', carriers)) do
    if is_hash(message) then
      local known = redis.call('HMGET', message, 'to', 'job_keys')
      for _, text in ipairs({flow_uid, known[1] or '', known[2] or ''}) do forgets[#forgets + 1] = text end
    end
    redis.call('ZREM', KEYS.held, message)
    redis.call('ZREM', KEYS.dead_letters, message)
    redis.call('UNLINK', message)
  end
end

-- Keys of a flow: its own, and for each node a job and the logs of its attempts. Text that is searched for blobs counts too.
local function keys_of(flow, caller, nodes)
  local keys = 8 + redis.call('SCARD', own('flow:' .. flow .. ':messages'))
  for n = 1, #nodes, 2 do
    local text = #nodes[n + 1] + redis.call('HSTRLEN', own('job:' .. caller .. ':' .. nodes[n]), 'files')
    keys = keys + 1 + tonumber(string.match(nodes[n + 1], '"attempt":(%d+)') or '0') + math.floor(text / 1024)
  end
  return keys
end

local function remove_flow(flow, record, nodes)
  local key = own('flow:' .. flow)
  revision = revision or raise()
  for n = 1, #nodes, 2 do remove_node(flow, record[4], nodes[n], nodes[n + 1]) end
  remove_messages(record[1], key .. ':messages')
  wake(key .. ':waiters', KEYS.flows_active)
  leave_ended(flow, record[6])
  redis.call('ZREM', own('flows'), flow)
  list_flow(flow, nil, record[2])
  emit_flow(revision, flow, nil, record[5], {record[3], record[4], record[7]})
  redis.call('UNLINK', key, key .. ':nodes', key .. ':messages', key .. ':signals', key .. ':inputs')
  removed, count, bytes = removed + 1, count - 1, bytes - (tonumber(record[6]) or 0)
end

local large, more = '', 0
for _, flow in ipairs(redis.call('ZRANGE', KEYS.flows_ended, 0, 99)) do
  if not is_due(tonumber(redis.call('ZSCORE', KEYS.flows_ended, flow))) then break end
  if touched >= KEYS_MAX then more = 1 break end
  local key = own('flow:' .. flow)
  local record = redis.call('HMGET', key, 'uid', 'status', 'name', 'caller_id', 'generation', 'bytes', 'created_at', 'deleting',
    'node_count', 'cancel_requested_time')
  local is_kept = record[1] and is_over(record[2], record[10])
  local is_small = is_kept and not record[8] and record[2] ~= 'created' and (tonumber(record[9]) or KEYS_MAX + 1) <= KEYS_MAX
  local nodes = is_small and redis.call('HGETALL', key .. ':nodes') or {}
  local keys = is_small and keys_of(flow, record[4], nodes) or KEYS_MAX + 1
  if not is_kept then
    leave_ended(flow, record[6])
    redis.call('HDEL', key, 'bytes')
    count, bytes = count - 1, bytes - (tonumber(record[6]) or 0)
  elseif touched + keys > KEYS_MAX and touched > 0 then
    more = 1
    break
  elseif keys > KEYS_MAX then
    large = flow
    break
  else
    remove_flow(flow, record, nodes)
    touched = touched + keys
  end
end
if removed > 0 then hint('') end
if large == '' and more == 0 then
  local oldest = redis.call('ZRANGE', KEYS.flows_ended, 0, 0, 'WITHSCORES')
  if oldest[2] and is_due(tonumber(oldest[2])) then more = 1 end
end
return {removed, large, more, unpack(forgets)}
