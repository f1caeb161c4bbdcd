-- What an instance has claimed, with what is needed to run it: for claims whose answer was lost.
-- ARGV: 1 instance
-- What it was handed is among them.
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
