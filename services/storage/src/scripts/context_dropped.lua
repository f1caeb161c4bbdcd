-- Some supervisors less have yet to forget a context that is going.
-- KEYS 4 drops
-- ARGV 5.. runner ids, at least one and some hundred at most
local no = closed(true)
if no then return no end
use_reserve()
if redis.call('SREM', KEYS[4], unpack(ARGV, 5)) > 0 and redis.call('EXISTS', KEYS[4]) == 0 then hint('removal') end
return 1
