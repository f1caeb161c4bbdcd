-- What every script that changes what belongs to no context begins with.
-- KEYS 1 ids, 2 events
-- ARGV 1 hint channel, 2 now in Unix seconds, 3 random bits of this change

local function refuse(code, message)
  return redis.error_reply(code .. ' ' .. message)
end

local function change(event)
  local revision = redis.call('HINCRBY', KEYS[1], 'revision', 1)
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', 1000000, revision .. '-1', 'e', event, 'b', ARGV[3])
  -- Who keeps what it was told of actors and contexts hears which of them changed.
  redis.call('PUBLISH', ARGV[1], event)
  return revision
end
