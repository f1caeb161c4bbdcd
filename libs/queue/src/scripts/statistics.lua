-- KEYS: 1 <queue>
local queue = KEYS[1]
local depth = redis.call('ZCARD', UNCLAIMED .. queue)
local age = 0
local oldest = redis.call('ZRANGE', UNCLAIMED .. queue, 0, 0)[1]
if oldest then
  age = math.max(0, now() - (redis.call('HGET', JOB .. oldest, 'queued_at') or now()))
end
age = string.format('%.3f', age)
redis.call('HSET', STATS .. queue, 'depth', depth, 'oldest_age_secs', age)
return {depth, age, redis.call('HGET', STATS .. queue, 'taken') or 0}
