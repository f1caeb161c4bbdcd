-- One supervisor less has yet to forget a context that is going.
-- KEYS 4 drops
-- ARGV 5 runner id
local no = closed(true)
if no then return no end
if redis.call('SREM', KEYS[4], ARGV[5]) == 1 and redis.call('EXISTS', KEYS[4]) == 0 then hint('removal') end
return 1
