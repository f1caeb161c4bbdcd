-- Shared functions of scripts for messages, behind the prelude: those that carry jobs, chat and mail.

-- Appends a line to the history of a message, as JSON; the last 100 are kept.
local function logged(logs, text)
  local kept = {}
  -- Starts a new list if a program has written something too long or not a list, and drops lines that cannot be encoded.
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

-- Returns which of our lists names a message: `letters`, or `nodes` for one that carries those of a flow; none for a message that a
-- program pushed. The hash does not tell, since programs write what they like.
local function kept_in(key, letters)
  local message = redis.call('HMGET', key, 'revision', 'flow_id')
  if not message[1] then return nil end
  if redis.call('ZSCORE', letters, key) then return 'letters' end
  local flow = string.match(message[2] or '', '^%d+$')
  local carriers = flow and own('flow:' .. flow .. ':messages')
  if not carriers or redis.call('TYPE', carriers).ok ~= 'set' then return nil end
  return redis.call('SISMEMBER', carriers, key) == 1 and 'nodes' or nil
end

-- Reads the wanted fields of a message, of which the first are `revision`, `open` and `recipient`, and counts their bytes. Returns 1
-- instead of them when there are more than `most`.
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

-- Returns the last number that a message of `caller` was given. Our numbers begin with 2^30 + 1: programs that number their
-- messages themselves count from 1.
local function last_message(caller)
  local last = tonumber(redis.call('HGET', KEYS.ids, 'message:' .. caller) or '0')
  return caller == '0' and last or math.max(last, 1073741824)
end

-- Gives a message of `caller` its number and its key, in a context whose keys begin with `prefix`; nothing when no number is
-- left. Messages that others pushed under numbers of their own choice are left alone.
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

-- Emits an event of a message. `key` is its Redis key; `status` is nil for a message that is gone.
local function emit_message(revision, key, status)
  local quoted = status and ('"' .. status .. '"') or 'null'
  emit(revision, '{"kind":"message","message_key":"' .. string.match(key, 'message:%d+:%d+$') .. '","status":' .. quoted .. '}')
end

-- Appends a line to the stored history of a message.
local function note(key, text)
  redis.call('HSET', key, 'logs', logged(redis.call('HGET', key, 'logs'), text))
end

-- Maximum number of messages in one inbox, and of their bytes.
local INBOX_MAX, INBOX_BYTES_MAX = 10000, 67108864

-- Returns true if the inbox of `actor` has room for a message of so many bytes.
local function has_place(actor, bytes)
  local waiting = tonumber(redis.call('HGET', own('inbox_bytes'), actor) or '0') or 0
  return redis.call('ZCARD', own('inbox:' .. actor)) < INBOX_MAX and waiting + bytes <= INBOX_BYTES_MAX
end

local function put_in(actor, key, revision, bytes)
  redis.call('ZADD', own('inbox:' .. actor), revision, key)
  redis.call('HSET', key, 'inbox_bytes', bytes)
  redis.call('HINCRBY', own('inbox_bytes'), actor, bytes)
end

-- Removes a message from the inbox of `actor`; returns true if it was in it.
local function take_from(actor, key)
  local inbox, waiting = own('inbox:' .. actor), own('inbox_bytes')
  if redis.call('ZREM', inbox, key) == 0 then return false end
  local bytes = is_hash(key) and string.match(redis.call('HGET', key, 'inbox_bytes') or '', '^%d+$') or '0'
  bytes = string.format('%.0f', math.min(tonumber(bytes), INBOX_BYTES_MAX))
  -- Resets the count of an empty inbox: others may have removed its messages.
  local is_empty = redis.call('EXISTS', inbox) == 0
  if is_empty or (bytes ~= '0' and redis.call('HINCRBY', waiting, actor, '-' .. bytes) < 0) then
    redis.call('HDEL', waiting, actor)
  end
  return true
end

-- Maximum number of messages in `letters` that are kept though nothing more is expected of them.
local DONE_MAX = 100000

-- Removes the message that was done first.
local function drop_oldest_done(revision)
  local ended, letters = own('letters_done'), own('letters')
  local oldest = redis.call('ZPOPMIN', ended)[1]
  -- Skips a message that its program has replaced under this key.
  local status = is_hash(oldest) and kept_in(oldest, letters) and redis.call('HGET', oldest, 'status')
  if status ~= 'dispatched' then redis.call('ZREM', letters, oldest) end
  if status and status ~= 'dispatched' then
    redis.call('UNLINK', oldest)
    emit_message(revision, oldest, nil)
  end
end

-- Marks a message in `letters` as done: nothing more is expected of it. Beyond `DONE_MAX` the oldest are removed: two at most, for
-- each that is added.
local function done(revision, key)
  local ended = own('letters_done')
  redis.call('ZADD', ended, revision, key)
  for _ = 1, 2 do
    if redis.call('ZCARD', ended) <= DONE_MAX then return end
    drop_oldest_done(revision)
  end
end
