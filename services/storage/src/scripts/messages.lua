-- What scripts of messages have in common, behind the prelude: those that carry jobs, chat and mail.

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
  kept[#kept + 1] = '{"time":' .. ARGV.now .. ',"text":' .. cjson.encode(text) .. '}'
  return '[' .. table.concat(kept, ',') .. ']'
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

-- The last number that a message of `caller` was given. Those of ours begin with 2^30 + 1: the programs that number their
-- messages themselves count from 1.
local function last_message(caller)
  local last = tonumber(redis.call('HGET', KEYS.ids, 'message:' .. caller) or '0')
  return caller == '0' and last or math.max(last, 1073741824)
end

-- Gives a message of `caller` its number and its key, in a context whose keys begin with `prefix`; nothing when there is
-- none left. What others pushed under numbers of their own choice is left alone.
local function new_message(prefix, caller)
  for id = last_message(caller) + 1, ID_MAX do
    local number = string.format('%.0f', id)
    local key = prefix .. 'message:' .. caller .. ':' .. number
    if redis.call('EXISTS', key) == 0 then
      redis.call('HSET', KEYS.ids, 'message:' .. caller, number)
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
