-- What every script that changes a context begins with.
-- KEYS 1 context, 2 ids, 3 events
-- ARGV 1 hint channel, 2 the context's uid ('' for any), 3 now in Unix seconds, 4 random bits of this change, as 16 digits, and
--      behind them, when somebody has asked for it, who does what, as JSON; behind all others what this storage has seen
--      last of the events, as `<id of the entry> <random bits>`, '' for nothing

local BITS, SEEN = string.sub(ARGV[4], 1, 16), table.remove(ARGV)

local function refuse(code, message)
  return redis.error_reply(code .. ' ' .. message)
end

-- Whether what this storage has seen is gone, and not because the events were trimmed: then Redis has lost changes.
local function has_gone_back()
  local id, bits = string.match(SEEN, '^(%d+%-%d+) (%x+)$')
  if not id then return false end
  local entry = redis.call('XRANGE', KEYS[3], id, id)[1]
  if entry then return entry[2][4] ~= bits end
  return redis.call('XLEN', KEYS[3]) == 0 or #redis.call('XRANGE', KEYS[3], '-', id, 'COUNT', 1) > 0
end

-- Why the context takes no changes; nothing when it does, and its revision. What is `removing` something may go on in a context that
-- goes.
local function closed(removing)
  local context = redis.call('HMGET', KEYS[1], 'uid', 'state', 'revision')
  if not context[1] then return refuse('CONTEXT_GONE', 'the context does not exist') end
  if ARGV[2] ~= '' and context[1] ~= ARGV[2] then
    return refuse('CONTEXT_GONE', 'the context is another one by now')
  end
  if removing then return nil, context[3] end
  if context[2] ~= 'active' then return refuse('CONTEXT_DELETING', 'the context is being deleted') end
  if has_gone_back() then return refuse('STORE_WENT_BACK', 'a change is gone that was seen') end
  return nil, context[3]
end

-- Lets the rest of this script write where Redis is at `maxmemory` too: for what frees memory, ends something or keeps alive
-- what there is. Redis refuses a script whose first write may take memory; this one takes none, and changes nothing.
local function use_reserve()
  redis.call('HDEL', KEYS[1], '')
end

-- A key of this context.
local function own(name)
  return string.match(KEYS[1], '^(.*)context:') .. name
end

-- Writes down who does what, where somebody has asked for this change. `revision` is 0 for one that has none.
local function audit(revision)
  if #ARGV[4] == 16 then return end
  local deed, keep = cjson.decode(string.sub(ARGV[4], 17)), 90 * 24 * 3600
  redis.call('XADD', own('audit'), 'MINID', '~', string.format('%.0f', math.max(0, tonumber(ARGV[3]) - keep) * 1000), '*',
    'identity', deed.identity, 'action', deed.action, 'object', deed.object, 'revision', revision, 'request_id', deed.request_id)
end

-- Refuses what would be more than there may be; nothing when it is not.
local function beyond(limit, most, asked)
  if asked <= tonumber(most) then return nil end
  return refuse('LIMIT_EXCEEDED', limit .. ' ' .. most .. ' ' .. string.format('%.0f', asked))
end

-- Counts flows that have not ended, and their nodes.
local function count_open(flows, nodes)
  redis.call('HINCRBY', KEYS[2], 'flows_open', flows)
  redis.call('HINCRBY', KEYS[2], 'jobs_open', nodes)
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

-- The number of this change. Called once, after every check.
local function raise()
  local revision = redis.call('HINCRBY', KEYS[2], 'revision', 1)
  audit(revision)
  return revision
end

-- Whether the request that `key` is for was carried out before; a refusal when it had another body then. Without a request id
-- there is no key.
local function asked_before(key, hash)
  local known = key and redis.call('HGET', key, 'hash')
  if not known then return false end
  if known ~= hash then return true, refuse('REQUEST_ID_REUSED', 'the request id came with another body before') end
  return true
end

-- Remembers a request with what it was answered.
local function remember(key, hash, secs, ...)
  if not key then return end
  redis.call('HSET', key, 'hash', hash, ...)
  redis.call('EXPIRE', key, secs)
end

local emitted = 0
local function emit(revision, event)
  emitted = emitted + 1
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 1000000, revision .. '-' .. emitted, 'e', event, 'b', BITS)
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
    .. about(fields) .. (result and ',"result":' .. result or '') .. ',"time":' .. ARGV[3] .. '}')
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

-- Writes messages that carry attempts, and lets the router hold them; without one they wait for whoever fetches them. Their keys are
-- behind `keys_at`. From `at` on ARGV has for each: caller, id, runner, timeout_ack, nodes, time of its making, how many nodes, their
-- job keys. Gives what is behind that.
local MESSAGE_ARGUMENTS = 8
local function write_messages(count, keys_at, at, of)
  for m = 1, count do
    local key = KEYS[keys_at + m]
    -- The number is ours, whatever a program has left under it.
    redis.call('UNLINK', key)
    redis.call('HSET', key, 'caller_id', ARGV[at], 'id', ARGV[at + 1], 'to', ARGV[at + 2], 'timeout_ack', ARGV[at + 3],
      'nodes', ARGV[at + 4], 'created_at', ARGV[at + 5], 'updated_at', ARGV[3], 'context_id', of.context,
      'flow_id', of.flow, 'router', of.router, 'target_context', '', 'topic', '', 'from_pubkey', '', 'origin', '',
      'signature', '', 'message', '', 'message_type', 'job', 'message_format_type', 'text', 'timeout', '0',
      'timeout_result', '0', 'logs', '[]', 'status', 'dispatched', 'error', '', 'transport_id', '',
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

-- Tells whoever listens that there is something to read, and which kind when it matters.
local function hint(kind)
  redis.call('PUBLISH', ARGV[1], kind)
end

-- Tells the owner of a flow, named `<id>-<uid>`, that there is something new for it.
local function touch(flow)
  redis.call('PUBLISH', ARGV[1], 'flow:' .. flow)
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
    redis.call('PUBLISH', ARGV[1], 'active')
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

-- What happened to a message so far, as JSON, and one line more; the last 100 are kept.
local function logged(logs, text)
  local kept = {}
  -- Others may have written it: what is too much or no list begins anew, and no line of theirs stands in the way.
  local is_json, lines = pcall(cjson.decode, logs and #logs <= 1048576 and logs or '[]')
  if is_json and type(lines) == 'table' then
    for n = math.max(1, #lines - 98), #lines do
      local is_line, line = pcall(cjson.encode, lines[n])
      if is_line then kept[#kept + 1] = line end
    end
  end
  kept[#kept + 1] = '{"time":' .. ARGV[3] .. ',"text":' .. cjson.encode(text) .. '}'
  return '[' .. table.concat(kept, ',') .. ']'
end

-- Programs may have left anything where a message is expected.
local function is_hash(key)
  return redis.call('TYPE', key).ok == 'hash'
end

-- Which of our lists names a message: `letters`, or `nodes` for one that carries those of a flow; none for what a program
-- pushed. The hash does not tell, since programs write what they like.
local function kept_in(key, letters)
  local message = redis.call('HMGET', key, 'revision', 'flow_id')
  if not message[1] then return nil end
  if redis.call('ZSCORE', letters, key) then return 'letters' end
  local flow = string.match(message[2] or '', '^%d+$')
  local carriers = flow and own('flow:' .. flow .. ':messages')
  if not carriers or redis.call('TYPE', carriers).ok ~= 'set' then return nil end
  return redis.call('SISMEMBER', carriers, key) == 1 and 'nodes' or nil
end

-- The wanted fields of a message, of which the first are `revision`, `open` and `recipient`, and how many bytes that is. 1
-- instead of them when it is more than `most`.
local function fields_of(key, letters, most, wanted)
  local bytes = 0
  for _, field in ipairs(wanted) do bytes = bytes + redis.call('HSTRLEN', key, field) end
  if bytes > most then return 1, 0 end
  local fields, kept = redis.call('HMGET', key, unpack(wanted)), kept_in(key, letters)
  if not kept then fields[1] = false end
  if kept ~= 'nodes' then fields[2] = false end
  if kept ~= 'letters' then fields[3] = false end
  return fields, bytes
end

-- The greatest id that 32 bits hold.
local ID_MAX = 4294967295

-- The last number that a message of `caller` was given. Those of ours begin with 2^30 + 1: the programs that number their
-- messages themselves count from 1.
local function last_message(caller)
  local last = tonumber(redis.call('HGET', KEYS[2], 'message:' .. caller) or '0')
  return caller == '0' and last or math.max(last, 1073741824)
end

-- Gives a message of `caller` its number and its key, in a context whose keys begin with `prefix`; nothing when there is
-- none left. What others pushed under numbers of their own choice is left alone.
local function new_message(prefix, caller)
  for id = last_message(caller) + 1, ID_MAX do
    local number = string.format('%.0f', id)
    local key = prefix .. 'message:' .. caller .. ':' .. number
    if redis.call('EXISTS', key) == 0 then
      redis.call('HSET', KEYS[2], 'message:' .. caller, number)
      return number, key
    end
  end
end

-- `key` is that of Redis; `status` is nil for a message that is gone.
local function emit_message(revision, key, status)
  local quoted = status and ('"' .. status .. '"') or 'null'
  emit(revision, '{"kind":"message","message_key":"' .. string.match(key, 'message:%d+:%d+$') .. '","status":' .. quoted .. '}')
end

-- Adds to what is remembered of what happened to a message.
local function note(key, text)
  redis.call('HSET', key, 'logs', logged(redis.call('HGET', key, 'logs'), text))
end

-- What one inbox holds: messages, and bytes of them.
local INBOX_MAX, INBOX_BYTES_MAX = 10000, 67108864

-- Whether there is a place in the inbox of `actor` for a message of so many bytes.
local function has_place(actor, bytes)
  local waiting = tonumber(redis.call('HGET', own('inbox_bytes'), actor) or '0') or 0
  return redis.call('ZCARD', own('inbox:' .. actor)) < INBOX_MAX and waiting + bytes <= INBOX_BYTES_MAX
end

local function put_in(actor, key, revision, bytes)
  redis.call('ZADD', own('inbox:' .. actor), revision, key)
  redis.call('HSET', key, 'inbox_bytes', bytes)
  redis.call('HINCRBY', own('inbox_bytes'), actor, bytes)
end

-- Takes a message out of the inbox of `actor`; says whether it was in it.
local function take_from(actor, key)
  local inbox, waiting = own('inbox:' .. actor), own('inbox_bytes')
  if redis.call('ZREM', inbox, key) == 0 then return false end
  local bytes = is_hash(key) and string.match(redis.call('HGET', key, 'inbox_bytes') or '', '^%d+$') or '0'
  bytes = string.format('%.0f', math.min(tonumber(bytes), INBOX_BYTES_MAX))
  -- Others may have removed what was in it: an empty one holds nothing, whatever was counted.
  local is_empty = redis.call('EXISTS', inbox) == 0
  if is_empty or (bytes ~= '0' and redis.call('HINCRBY', waiting, actor, '-' .. bytes) < 0) then
    redis.call('HDEL', waiting, actor)
  end
  return true
end

-- Messages in `letters` that are kept though nothing more is expected of them.
local DONE_MAX = 100000

-- Nothing more is expected of a message that `letters` names. Beyond `DONE_MAX` the oldest of those go: two at most, for each
-- that comes.
local function done(revision, key)
  local ended, letters = own('letters_done'), own('letters')
  redis.call('ZADD', ended, revision, key)
  for _ = 1, 2 do
    if redis.call('ZCARD', ended) <= DONE_MAX then return end
    local oldest = redis.call('ZPOPMIN', ended)[1]
    -- Its program may have written another one under this key.
    local status = is_hash(oldest) and kept_in(oldest, letters) and redis.call('HGET', oldest, 'status')
    if status ~= 'dispatched' then redis.call('ZREM', letters, oldest) end
    if status and status ~= 'dispatched' then
      redis.call('UNLINK', oldest)
      emit_message(revision, oldest, nil)
    end
  end
end
