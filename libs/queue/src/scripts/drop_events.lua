-- Drops the events of a context's jobs that were not delivered yet, a part of the stream at a time.
-- KEYS = done
-- ARGV = group prefix from count
--
-- `group` is a consumer group, `prefix` the beginning of the context's job keys. `from` is the first entry, `count` the number of
-- entries to look at.
use_reserve()
local entries = redis.call('XRANGE', KEYS.done, ARGV.from, '+', 'COUNT', ARGV.count)
local last = ''
for _, entry in ipairs(entries) do
  last = entry[1]
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'key' and string.sub(fields[i + 1], 1, #ARGV.prefix) == ARGV.prefix then
      redis.call('XACK', KEYS.done, ARGV.group, last)
      redis.call('XDEL', KEYS.done, last)
    end
  end
end
if #entries < tonumber(ARGV.count) then
  last = ''
end
return last
