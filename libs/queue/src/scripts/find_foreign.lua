-- Finds what others pushed into a queue that nobody takes from: the first entries of it.
-- KEYS = queue
-- ARGV = count
--
-- `count` is how many are looked at.
-- Gives how many there were.
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
