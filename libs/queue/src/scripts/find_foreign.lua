-- Finds foreign entries at the head of a queue that no instance takes from.
-- KEYS = queue
-- ARGV = count
--
-- `count` is the number of entries to look at.
-- Returns how many were foreign.
local found = 0
local entries = redis.pcall('LRANGE', KEYS.queue, 0, ARGV.count - 1)
if entries.err then return 0 end
for _, entry in ipairs(entries) do
  if not is_job_key(entry) and redis.call('LREM', KEYS.queue, 1, entry) > 0 then
    put_foreign(KEYS.queue, entry)
    found = found + 1
  end
end
return found
