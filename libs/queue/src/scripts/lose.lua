-- Ends what an instance had started, as lost.
-- KEYS: 1 presence   ARGV: 1 instance  2 how many at most  3 reason as JSON  4 even if it is present
use_reserve()
if ARGV[4] ~= '1' and redis.call('EXISTS', KEYS[1]) == 1 then
  return {-1}
end
take_nothing(ARGV[1])
redis.call('DEL', HANDED .. ARGV[1])
local claims = CLAIMS .. ARGV[1]
local keys = redis.call('ZRANGE', claims, 0, ARGV[2] - 1)
local lost = {#keys}
for _, key in ipairs(keys) do
  redis.call('ZREM', claims, key)
  local known = redis.call('HMGET', JOB .. key, 'state', 'claimed_by', 'started_at', 'log_offset')
  if known[1] == 'started' and known[2] == ARGV[1] then
    redis.call('HSET', JOB .. key, 'error', string.sub(ARGV[3], 2, -2))
    end_job(key, 'lost', ended_event('lost', ARGV[3], ARGV[1], known[3], known[4]))
    lost[#lost + 1] = key
  end
end
if #keys < tonumber(ARGV[2]) and ARGV[4] ~= '1' then
  redis.call('SREM', INSTANCES, ARGV[1])
end
return lost
