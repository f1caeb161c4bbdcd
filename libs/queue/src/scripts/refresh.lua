-- Keeps an instance present.
-- KEYS = presence
-- ARGV = instance life record live_secs
--
-- `record` is the presence as JSON.
-- Returns the jobs that the instance holds, each with the grace of a requested stop, or nothing.
use_reserve()
if is_replaced(KEYS.presence, ARGV.life) then
  return redis.error_reply('REPLACED another process works under this instance number')
end
redis.call('SET', KEYS.presence, ARGV.record, 'EX', ARGV.live_secs)
redis.call('SADD', INSTANCES, ARGV.instance)
local held = {}
for _, key in ipairs(redis.call('ZRANGE', CLAIMS .. ARGV.instance, 0, 999)) do
  held[#held + 1] = {key, redis.call('HGET', JOB .. key, 'stop_requested') or ''}
end
return held
