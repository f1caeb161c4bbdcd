-- Removes entries of flows that are gone from the sets of active flows.
-- KEYS = flow flows_active due
--
-- After the arguments follow entries, all of flows of that number.
local no = closed()
if no then return no end
use_reserve()
local uid = redis.call('HGET', KEYS.flow, 'uid')
for a = ARGV_NAMED + 1, #ARGV do
  if not uid or string.match(ARGV[a], '-(%x+)$') ~= uid then
    redis.call('SREM', KEYS.flows_active, ARGV[a])
    redis.call('ZREM', KEYS.due, ARGV[a])
  end
end
return 1
