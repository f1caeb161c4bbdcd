-- Ends the jobs that an instance had started, as lost.
-- KEYS = presence
-- ARGV = instance count reason is_own
--
-- `count` is the maximum number, `reason` is JSON. `is_own` means that the instance itself asks, in a new life, and is present.
use_reserve()
if ARGV.is_own ~= '1' and redis.call('EXISTS', KEYS.presence) == 1 then
  return {-1}
end
take_nothing(ARGV.instance)
redis.call('DEL', HANDED .. ARGV.instance)
local claims = CLAIMS .. ARGV.instance
local keys = redis.call('ZRANGE', claims, 0, ARGV.count - 1)
local lost = {#keys}
for _, key in ipairs(keys) do
  redis.call('ZREM', claims, key)
  local known = redis.call('HMGET', JOB .. key, 'state', 'claimed_by', 'started_at', 'log_offset')
  if known[1] == 'started' and known[2] == ARGV.instance then
    redis.call('HSET', JOB .. key, 'error', string.sub(ARGV.reason, 2, -2))
    end_job(key, 'lost', ended_event('lost', ARGV.reason, ARGV.instance, known[3], known[4]))
    lost[#lost + 1] = key
  end
end
if #keys < tonumber(ARGV.count) and ARGV.is_own ~= '1' then
  redis.call('SREM', INSTANCES, ARGV.instance)
end
return lost
