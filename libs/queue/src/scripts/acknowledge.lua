-- The coordinator has these events.
-- KEYS: 1 hero:done   ARGV: 1 consumer group  2 seconds to keep ended jobs  3… pairs of entry id and ended
--       job's key, or nothing
for i = 3, #ARGV, 2 do
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  redis.call('XDEL', KEYS[1], ARGV[i])
  local key = ARGV[i + 1]
  if key ~= '' then
    local job = JOB .. key
    local context = redis.call('HGET', job, 'context')
    if context then
      -- What it needed to run is of no use any more; how it ended is kept for a while.
      redis.call('HDEL', job, 'job', 'script', 'env_vars', 'again')
      redis.call('EXPIRE', job, ARGV[2])
      local time = tonumber(redis.call('TIME')[1])
      local jobs = 'hero:jobs:' .. context
      redis.call('ZADD', jobs, time + ARGV[2], key)
      redis.call('ZREMRANGEBYSCORE', jobs, '-inf', time)
    end
  end
end
return redis.status_reply('OK')
