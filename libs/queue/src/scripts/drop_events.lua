-- Forgets what happened to a context's jobs and was not told yet, a part of the stream at a time.
-- KEYS: 1 hero:done   ARGV: 1 consumer group  2 what the context's job keys begin with  3 from this entry on
--       4 how many to look at
use_reserve()
local entries = redis.call('XRANGE', KEYS[1], ARGV[3], '+', 'COUNT', ARGV[4])
local last = ''
for _, entry in ipairs(entries) do
  last = entry[1]
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'key' and string.sub(fields[i + 1], 1, #ARGV[2]) == ARGV[2] then
      redis.call('XACK', KEYS[1], ARGV[1], last)
      redis.call('XDEL', KEYS[1], last)
    end
  end
end
if #entries < tonumber(ARGV[4]) then
  last = ''
end
return last
