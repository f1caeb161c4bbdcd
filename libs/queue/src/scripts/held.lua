-- What an instance has claimed, with what is needed to run it: for claims whose answer was lost.
-- KEYS = presence
-- ARGV = instance life
--
-- Gives nothing to one whose place another has taken.
if is_replaced(KEYS.presence, ARGV.life) then return {} end
-- Jobs that the instance was handed are among those that it has claimed.
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
