-- Finds what others pushed into a queue that nobody takes from: the first entries of it.
-- KEYS: 1 <queue>   ARGV: 1 how many to look at
-- Gives how many there were.
local found = 0
local entries = redis.pcall('LRANGE', KEYS[1], 0, ARGV[1] - 1)
if entries.err then return 0 end
for _, entry in ipairs(entries) do
  if not is_job_key(entry) and redis.call('LREM', KEYS[1], 1, entry) > 0 then
    put_foreign(KEYS[1], entry)
    found = found + 1
  end
end
return found
