-- Returns up to a number of waiting jobs of a queue to their senders.
-- KEYS = queue
-- ARGV = count
use_reserve()
local keys = redis.call('ZRANGE', UNCLAIMED .. KEYS.queue, 0, ARGV.count - 1)
local returned = 0
for _, key in ipairs(keys) do
  local job = JOB .. key
  if take_out(key) then
    returned = returned + 1
    local old = redis.call('HMGET', job, 'old_queue', 'old_entry', 'context')
    if old[1] then
      redis.pcall('LPUSH', old[1], old[2])
      redis.call('DEL', job)
      redis.call('ZREM', JOBS .. old[3], key)
    else
      redis.call('HSET', job, 'state', 'returned', 'status', 'returned', 'ended_at', now())
      tell(key, 'returned', '{"kind":"returned"}')
    end
  end
end
return {#keys, returned}
