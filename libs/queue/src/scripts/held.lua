-- Returns the jobs that an instance has claimed, with everything needed to run them: for claims whose answer was lost.
-- KEYS = presence
-- ARGV = instance life
--
-- Returns nothing to an instance that another life has replaced.
if is_replaced(KEYS.presence, ARGV.life) then return {} end
-- Jobs that were handed to the instance are among the claimed ones.
redis.call('DEL', HANDED .. ARGV.instance)
local held = {}
for _, key in ipairs(redis.call('ZRANGE', CLAIMS .. ARGV.instance, 0, 999)) do
  local known = redis.call('HMGET', JOB .. key, 'started_at', 'job', 'script', 'grants')
  if known[1] then
    held[#held + 1] = {key, known[1], known[2], known[3], known[4]}
  else
    redis.call('ZREM', CLAIMS .. ARGV.instance, key)
  end
end
return held
