-- Shared functions of scripts for flows and jobs, behind the prelude.

-- Counts flows that have not ended, and their nodes.
local function count_open(flows, nodes)
  redis.call('HINCRBY', KEYS.ids, 'flows_open', flows)
  redis.call('HINCRBY', KEYS.ids, 'jobs_open', nodes)
end

-- Translates the status of a flow to the one that people are told.
local function told(status)
  return ({started = 'running', finished = 'completed', error = 'failed'})[status] or status
end

-- Returns true if a flow is over: it has ended, or was cancelled before it was started.
local function is_over(status, cancel_requested_time)
  return status == 'finished' or status == 'error' or status == 'cancelled'
    or (status == 'created' and (cancel_requested_time or '') ~= '')
end

-- Takes a flow off what is kept of ended flows: it runs again, or goes. `bytes` is its size, once it was measured.
local function leave_ended(flow, bytes)
  if bytes and string.match(bytes, '^%d+$') then redis.call('HINCRBY', KEYS.ids, 'ended_flow_bytes', '-' .. bytes) end
  redis.call('ZREM', own('flows_ended'), flow)
  redis.call('SREM', own('flows_unmeasured'), flow)
end

local STATUSES = {'created', 'started', 'finished', 'error', 'cancelled'}

-- Lists a flow under its status, at its place among all flows, and no longer under its former one; under none when it
-- is gone.
local function list_flow(flow, status, before)
  if before and before ~= status then redis.call('ZREM', own('flows:' .. before), flow) end
  local place = status and redis.call('ZSCORE', own('flows'), flow)
  if place then redis.call('ZADD', own('flows:' .. status), place, flow) end
end

-- Fields of a flow for watchers: its name and these numbers; programs may have written something else there.
local ABOUT = {'name', 'caller_id', 'created_at', 'deadline', 'cancel_requested_time'}
local function about(fields)
  local text = string.match(fields[1] or '', '^[%w_-]+$') and ',"name":"' .. fields[1] .. '"' or ''
  for i = 2, #fields do
    local number = fields[i] or ''
    if string.match(number, '^%d+$') or string.match(number, '^%d+%.%d+$') then
      text = text .. ',"' .. ABOUT[i] .. '":' .. number
    end
  end
  return text
end

-- Emits an event of a flow. `status` is nil for a flow that is gone. `fields` are the ABOUT fields of KEYS[4], unless they
-- have to be read; `result` is its result as JSON, if the event has it.
local function emit_flow(revision, flow, status, generation, fields, result)
  local quoted = status and ('"' .. status .. '"') or 'null'
  fields = fields or redis.call('HMGET', KEYS[4], unpack(ABOUT, 1, status and 5 or 3))
  emit(revision, '{"kind":"flow","flow_id":' .. flow .. ',"status":' .. quoted .. ',"generation":' .. generation
    .. about(fields) .. (result and ',"result":' .. result or '') .. ',"time":' .. ARGV.now .. '}')
end

-- Writes nodes with their jobs, whose keys are behind `jobs_at`. From `at` on ARGV has for each its job id, the node, F, and F times
-- field and value. Returns the index after them.
local function write_nodes(nodes, count, jobs_at, at)
  local entries = {}
  for n = 1, count do
    local last = at + 2 + 2 * tonumber(ARGV[at + 2])
    entries[2 * n - 1], entries[2 * n] = ARGV[at], ARGV[at + 1]
    redis.call('HSET', KEYS[jobs_at + n], unpack(ARGV, at + 3, last))
    at = last + 1
  end
  redis.call('HSET', nodes, unpack(entries))
  return at
end

-- Refuses a reference to a blob that does not exist; returns nothing if all do. Pairs of keys, blob and blob_refs, follow `blobs_at`.
local function without_blob(blobs, blobs_at)
  for b = 1, blobs do
    local blob = KEYS[blobs_at - 1 + 2 * b]
    if redis.call('EXISTS', blob) == 0 then return refuse('BLOB_MISSING', blob) end
  end
end

-- Stores which jobs refer to blobs, whose pairs of keys, blob and blob_refs, are behind `blobs_at`. From `at` on ARGV has pairs of
-- a blob's number and a job's.
local function refer(blob_idle, blobs, blobs_at, refs, jobs_at, at)
  for r = 0, refs - 1 do
    redis.call('SADD', KEYS[blobs_at + 2 * tonumber(ARGV[at + 2 * r])], KEYS[jobs_at + tonumber(ARGV[at + 2 * r + 1])])
  end
  for b = 1, blobs do
    redis.call('ZREM', blob_idle, string.match(KEYS[blobs_at - 1 + 2 * b], '%x+$'))
  end
end

-- Writes messages that carry attempts, and lets the router hold them; without a router they wait for one. Fields without a value,
-- or with the same one in all messages, are not written. Their keys are behind `keys_at`. From `at` on ARGV has for each: caller,
-- id, runner, timeout_ack, nodes, creation time, number of nodes, their job keys. Returns the index after them.
local MESSAGE_ARGUMENTS = 8
local function write_messages(count, keys_at, at, of)
  for m = 1, count do
    local key = KEYS[keys_at + m]
    -- Replaces whatever a program has left under the number, which is ours.
    redis.call('UNLINK', key)
    redis.call('HSET', key, 'caller_id', ARGV[at], 'id', ARGV[at + 1], 'to', ARGV[at + 2], 'timeout_ack', ARGV[at + 3],
      'nodes', ARGV[at + 4], 'created_at', ARGV[at + 5], 'updated_at', ARGV.now, 'context_id', of.context,
      'flow_id', of.flow, 'router', of.router, 'message_type', 'job', 'status', 'dispatched',
      'transport_status', 'queued', 'revision', of.revision, 'open', ARGV[at + 6], 'job_keys', ARGV[at + 7])
    redis.call('SADD', of.carriers, key)
    if of.router == '' then
      redis.call('LPUSH', of.out, key)
    else
      redis.call('ZADD', of.held, of.hold_end, key)
    end
    at = at + MESSAGE_ARGUMENTS
  end
  return at
end

-- Emits an event of a job that belongs to no flow.
local function emit_job(revision, caller, id, removed)
  emit(revision, '{"kind":"job","caller_id":' .. caller .. ',"job_id":' .. id .. ',"removed":' .. tostring(removed) .. '}')
end

-- Notifies the owner of a flow, named `<id>-<uid>`, that there is something new for it.
local function touch(flow)
  redis.call('PUBLISH', ARGV.hint, 'flow:' .. flow)
end

-- Wakes the flows that waited for one that has ended, or is gone: they have something to do.
local function wake(waiters, active)
  local flows = redis.call('SMEMBERS', waiters)
  if #flows == 0 then return end
  for from = 1, #flows, 1000 do
    redis.call('SADD', active, unpack(flows, from, math.min(from + 999, #flows)))
  end
  redis.call('UNLINK', waiters)
  if #flows > 100 then
    redis.call('PUBLISH', ARGV.hint, 'active')
  else
    for _, flow in ipairs(flows) do touch(flow) end
  end
end

-- Returns the time `secs` seconds after `millis`; '' without a limit.
local function deadline(millis, secs)
  if not secs or secs == '' then return '' end
  local at = tonumber(millis) + 1000 * tonumber(secs)
  return string.format('%.0f.%03.0f', math.floor(at / 1000), at % 1000)
end
