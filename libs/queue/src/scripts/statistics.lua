-- Measures a queue.
-- KEYS = queue
local queue = KEYS.queue
local stats = STATS .. queue
local depth = redis.call('ZCARD', UNCLAIMED .. queue)
local time = now()
-- Forgets callers that had nothing sent here for an hour.
redis.call('ZREMRANGEBYSCORE', CALLERS, '-inf', time - 3600)
local age = 0
local oldest = redis.call('ZRANGE', UNCLAIMED .. queue, 0, 0)[1]
if oldest then
  age = math.max(0, time - (redis.call('HGET', JOB .. oldest, 'queued_at') or time))
end
age = string.format('%.3f', age)
-- Throughput since a mark that is one to two minutes old: `from` is in use, `next` will be.
local marks = redis.call('HMGET', stats, 'taken', 'from_at', 'from', 'next_at', 'next')
local taken = marks[1] or 0
local from_at, from, next_at, next_taken = marks[2] or time, marks[3] or taken, marks[4] or time, marks[5] or taken
if time - next_at >= 60 or time - next_at < 0 then
  from_at, from, next_at, next_taken = next_at, next_taken, time, taken
end
local elapsed = time - from_at
local rate = string.format('%.3f', elapsed > 0 and (taken - from) / elapsed or 0)
redis.call('HSET', stats, 'depth', depth, 'oldest_age_secs', age, 'taken_per_sec', rate,
  'from_at', from_at, 'from', from, 'next_at', next_at, 'next', next_taken)
return {depth, age, taken, rate}
