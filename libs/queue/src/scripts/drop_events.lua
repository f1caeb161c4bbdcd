-- Forgets what happened to a context's jobs and was not told yet, a part of the stream at a time.
-- KEYS = done
-- ARGV = group prefix from count
--
-- `group` is a consumer group, `prefix` what the context's job keys begin with. `from` is the first entry, `count` how many are
-- looked at.
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
