-- KEYS: 1 presence   ARGV: 1 instance  2 this life  3 presence as JSON  4 seconds to live
-- Gives what the instance holds, each with the grace of a stop that was asked for, or nothing.
use_reserve()
if is_replaced(KEYS[1], ARGV[2]) then
  return redis.error_reply('REPLACED another process works under this instance number')
end
redis.call('SET', KEYS[1], ARGV[3], 'EX', ARGV[4])
redis.call('SADD', INSTANCES, ARGV[1])
local held = {}
for _, key in ipairs(redis.call('ZRANGE', CLAIMS .. ARGV[1], 0, 999)) do
  held[#held + 1] = {key, redis.call('HGET', JOB .. key, 'stop_requested') or ''}
end
return held
