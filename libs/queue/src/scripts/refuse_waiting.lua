-- Ends a number of waiting jobs of a queue that nobody can run.
-- KEYS: 1 <queue>   ARGV: 1 how many  2 event of the end  3 why
local keys = redis.call('ZRANGE', UNCLAIMED .. KEYS[1], 0, ARGV[1] - 1)
for _, key in ipairs(keys) do
  if take_out(key) then
    redis.call('HSET', JOB .. key, 'error', ARGV[3])
    end_job(key, 'error', ARGV[2])
  end
end
return #keys
