-- Checks that messages of ours are in the lists where they belong.
-- KEYS = msg_out held letters dead_letters letters_done
--
-- After the arguments follow keys of messages.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end

-- Returns true for a number that was given here, and not chosen by the program that pushed the message.
local function is_given(key)
  local caller, id = string.match(key, 'message:(%d+):(%d+)$')
  id = tonumber(id)
  return (caller == '0' or id > 1073741824) and id <= last_message(caller)
end

-- Checks that chat and mail are listed. Returns which list names a message.
local function check_listed(key, message)
  local kept = kept_in(key, KEYS.letters)
  if kept or not tonumber(message[1]) or (message[2] ~= 'chat' and message[2] ~= 'mail') or not is_given(key) then return kept end
  if not report('MESSAGE_NOT_LISTED', bare(key), 'no list names the message', 'it is listed') then return end
  redis.call('ZADD', KEYS.letters, message[1], key)
  if message[3] == 'processed' then redis.call('ZADD', KEYS.letters_done, 'NX', message[1], key) end
  return 'letters'
end

-- Checks that a message on its way waits for a router, or is held by one.
local function check_place(key, message)
  -- Skips a message that a program may be writing anew under its key.
  if redis.call('ZSCORE', KEYS.dead_letters, key) or redis.call('ZSCORE', KEYS.letters_done, key) then return end
  local held, waits = redis.call('ZSCORE', KEYS.held, key), redis.call('LPOS', KEYS.msg_out, key)
  if not held and not waits then
    local problem = 'the message is on its way, and is in neither msg_out nor msg_out_coordinator'
    if report('MESSAGE_LOST', bare(key), problem, 'it waits for a router again') then
      redis.call('LPUSH', KEYS.msg_out, key)
      hint('out')
    end
  -- A program may push its message again, which has no effect.
  elseif held and waits and not message[4] then
    local problem = 'the message is in both msg_out and msg_out_coordinator'
    if report('MESSAGE_TWICE', bare(key), problem, 'its router alone has it') then redis.call('LREM', KEYS.msg_out, 0, key) end
  end
end

for a = ARGV_NAMED + 1, #ARGV do
  local key = ARGV[a]
  local message = is_hash(key) and redis.call('HMGET', key, 'revision', 'message_type', 'status', 'taken_revision')
  local kept = message and check_listed(key, message)
  if kept and message[3] == 'dispatched' then check_place(key, message) end
end
return findings
