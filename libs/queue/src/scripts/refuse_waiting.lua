-- Ends a number of waiting jobs of a queue that no instance can run.
-- KEYS = queue
-- ARGV = count event why
--
-- `event` is the event of the end.
local keys = redis.call('ZRANGE', UNCLAIMED .. KEYS.queue, 0, ARGV.count - 1)
for _, key in ipairs(keys) do
  if take_out(key) then
    redis.call('HSET', JOB .. key, 'error', ARGV.why)
    end_job(key, 'error', ARGV.event)
  end
end
return #keys
