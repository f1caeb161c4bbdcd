-- Measures flows that are over, counts their bytes, and lists each by when it ended.
-- ARGV = keys_max
--
-- About `keys_max` keys are looked at. Of a flow of many nodes, some are measured for all.
-- Returns how many flows are left to measure.
local no = closed()
if no then return no end
use_reserve()

-- Nodes of one flow, messages of it, and attempts of one node that are measured.
local NODES_MAX, MESSAGES_MAX, ATTEMPTS_MAX = 64, 16, 4
-- Bytes that the entries of a flow take in the lists of flows, about.
local ENTRIES_BYTES = 320
local looked = 0

local function bytes_of(key)
  looked = looked + 1
  return redis.call('MEMORY', 'USAGE', key) or 0
end

local function bytes_of_node(flow, caller, job)
  local node = redis.call('HGET', own('flow:' .. flow .. ':nodes'), job) or ''
  local attempts, bytes = tonumber(string.match(node, '"attempt":(%d+)') or '0'), bytes_of(own('job:' .. caller .. ':' .. job))
  local some, logs = math.min(attempts, ATTEMPTS_MAX), 0
  for attempt = attempts - some + 1, attempts do
    logs = logs + bytes_of(own('log:' .. flow .. ':' .. job .. ':' .. string.format('%.0f', attempt)))
  end
  return bytes + (some > 0 and logs * attempts / some or 0)
end

local function bytes_of_flow(flow, caller, first, count)
  local key = own('flow:' .. flow)
  local carriers, bytes = key .. ':messages', ENTRIES_BYTES
  for _, part in ipairs({'', ':nodes', ':signals', ':messages'}) do bytes = bytes + bytes_of(key .. part) end
  local messages = redis.call('SRANDMEMBER', carriers, MESSAGES_MAX)
  local of_messages, of_nodes, nodes = 0, 0, 0
  for _, message in ipairs(messages) do of_messages = of_messages + bytes_of(message) end
  local all = #messages < MESSAGES_MAX and #messages or redis.call('SCARD', carriers)
  if #messages > 0 then bytes = bytes + of_messages * all / #messages end
  for n = 0, count - 1, math.max(1, math.ceil(count / NODES_MAX)) do
    of_nodes, nodes = of_nodes + bytes_of_node(flow, caller, string.format('%.0f', first + n)), nodes + 1
  end
  return nodes > 0 and bytes + of_nodes * count / nodes or bytes
end

local unmeasured, total = own('flows_unmeasured'), 0
while looked < tonumber(ARGV.keys_max) do
  local flow = redis.call('SPOP', unmeasured)
  if not flow then break end
  looked = looked + 1
  local key = own('flow:' .. flow)
  local record = redis.call('HMGET', key, 'status', 'cancel_requested_time', 'bytes', 'updated_at', 'caller_id', 'first_job_id',
    'node_count')
  local ended, first, count = tonumber(record[4]), tonumber(record[6]), tonumber(record[7])
  if is_over(record[1], record[2]) and (record[3] or '') == '' and ended and first and count then
    local bytes = string.format('%.0f', math.ceil(bytes_of_flow(flow, record[5], first, count)))
    redis.call('HSET', key, 'bytes', bytes)
    redis.call('ZADD', own('flows_ended'), record[4], flow)
    total = total + tonumber(bytes)
  end
end
if total > 0 then redis.call('HINCRBY', KEYS.ids, 'ended_flow_bytes', string.format('%.0f', total)) end
return redis.call('SCARD', unmeasured)
