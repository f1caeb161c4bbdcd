-- Gives up to a number of waiting jobs of a queue back to who sent them.
-- KEYS: 1 <queue>   ARGV: 1 how many
local keys = redis.call('ZRANGE', UNCLAIMED .. KEYS[1], 0, ARGV[1] - 1)
for _, key in ipairs(keys) do
  unqueue(key, KEYS[1])
  redis.call('HSET', JOB .. key, 'status', 'returned', 'ended_at', now())
  tell(key, 'returned', '{"kind":"returned"}')
end
return #keys
