-- Removes entries of flows that are gone from the sets of those that have something to do.
-- KEYS 4 flow, 5 flows_active, 6 due
-- ARGV 5.. entries, all of flows of that number
local no = closed()
if no then return no end
use_reserve()
local uid = redis.call('HGET', KEYS[4], 'uid')
for a = 5, #ARGV do
  if not uid or string.match(ARGV[a], '-(%x+)$') ~= uid then
    redis.call('SREM', KEYS[5], ARGV[a])
    redis.call('ZREM', KEYS[6], ARGV[a])
  end
end
return 1
