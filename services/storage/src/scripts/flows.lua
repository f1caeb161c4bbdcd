-- What scripts of flows and jobs have in common, behind the prelude.

-- Counts flows that have not ended, and their nodes.
local function count_open(flows, nodes)
  redis.call('HINCRBY', KEYS.ids, 'flows_open', flows)
  redis.call('HINCRBY', KEYS.ids, 'jobs_open', nodes)
end

-- The status of a flow as people are told it.
local function told(status)
  return ({started = 'running', finished = 'completed', error = 'failed'})[status] or status
end

local STATUSES = {'created', 'started', 'finished', 'error', 'cancelled'}

-- Lists a flow under its status, at its place among all flows, and no longer under the one that it had; under none when it
-- is gone.
local function list_flow(flow, status, before)
  if before and before ~= status then redis.call('ZREM', own('flows:' .. before), flow) end
  local place = status and redis.call('ZSCORE', own('flows'), flow)
  if place then redis.call('ZADD', own('flows:' .. status), place, flow) end
end

-- What watchers are told of a flow, from its name and these numbers; programs may have written something else there.
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

-- `status` is nil for a flow that is gone. `fields` are those that are told of the flow, KEYS[4], unless they have to be read;
-- `result` is its result as JSON, where that is told.
local function emit_flow(revision, flow, status, generation, fields, result)
  local quoted = status and ('"' .. status .. '"') or 'null'
  fields = fields or redis.call('HMGET', KEYS[4], unpack(ABOUT, 1, status and 5 or 3))
  emit(revision, '{"kind":"flow","flow_id":' .. flow .. ',"status":' .. quoted .. ',"generation":' .. generation
    .. about(fields) .. (result and ',"result":' .. result or '') .. ',"time":' .. ARGV.now .. '}')
end

-- Writes nodes with their jobs, whose keys are behind `jobs_at`. From `at` on ARGV has for each its job id, the node, F, and F times
-- field and value. Gives what is behind that.
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

-- Refuses what refers to a blob that is not there; nothing when all are. Pairs of keys, blob and blob_refs, are behind `blobs_at`.
local function without_blob(blobs, blobs_at)
  for b = 1, blobs do
    local blob = KEYS[blobs_at - 1 + 2 * b]
    if redis.call('EXISTS', blob) == 0 then return refuse('BLOB_MISSING', blob) end
  end
end

-- Notes which jobs refer to blobs, whose pairs of keys, blob and blob_refs, are behind `blobs_at`. From `at` on ARGV has pairs of
-- a blob's number and a job's.
local function refer(blob_idle, blobs, blobs_at, refs, jobs_at, at)
  for r = 0, refs - 1 do
    redis.call('SADD', KEYS[blobs_at + 2 * tonumber(ARGV[at + 2 * r])], KEYS[jobs_at + tonumber(ARGV[at + 2 * r + 1])])
  end
  for b = 1, blobs do
    redis.call('ZREM', blob_idle, string.match(KEYS[blobs_at - 1 + 2 * b], '%x+$'))
  end
end

-- Writes messages that carry attempts, and lets the router hold them; without one they wait for whoever fetches them. What has no
-- value, or the same one in all of them, is not written. Their keys are behind `keys_at`. From `at` on ARGV has for each: caller, id,
-- runner, timeout_ack, nodes, time of its making, how many nodes, their job keys. Gives what is behind that.
local MESSAGE_ARGUMENTS = 8
local function write_messages(count, keys_at, at, of)
  for m = 1, count do
    local key = KEYS[keys_at + m]
    -- The number is ours, whatever a program has left under it.
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

-- Of a job that belongs to no flow.
local function emit_job(revision, caller, id, removed)
  emit(revision, '{"kind":"job","caller_id":' .. caller .. ',"job_id":' .. id .. ',"removed":' .. tostring(removed) .. '}')
end

-- Tells the owner of a flow, named `<id>-<uid>`, that there is something new for it.
local function touch(flow)
  redis.call('PUBLISH', ARGV.hint, 'flow:' .. flow)
end

-- The flows that waited for one that has ended, or is gone, have something to do.
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

-- The moment so many seconds after `millis`; none when there is no such limit.
local function deadline(millis, secs)
  if not secs or secs == '' then return '' end
  local at = tonumber(millis) + 1000 * tonumber(secs)
  return string.format('%.0f.%03.0f', math.floor(at / 1000), at % 1000)
end
