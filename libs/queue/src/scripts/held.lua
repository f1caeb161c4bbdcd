-- What an instance has claimed, with what is needed to run it: for claims whose answer was lost.
-- KEYS: 1 presence   ARGV: 1 instance  2 this life
-- Gives nothing to one whose place another has taken.
if is_replaced(KEYS[1], ARGV[2]) then return {} end
-- Jobs that the instance was handed are among those that it has claimed.
redis.call('DEL', HANDED .. ARGV[1])
local held = {}
for _, key in ipairs(redis.call('ZRANGE', CLAIMS .. ARGV[1], 0, 999)) do
  local known = redis.call('HMGET', JOB .. key, 'started_at', 'job', 'script', 'grants')
  if known[1] then
    held[#held + 1] = {key, known[1], known[2], known[3], known[4]}
  else
    redis.call('ZREM', CLAIMS .. ARGV[1], key)
  end
end
return held
