-- Ends the freeze of a context whose export is complete.
-- ARGV = snapshot
local no = closed(false, true)
if no then return no end
if redis.call('HGET', KEYS.context, 'snapshot') ~= ARGV.snapshot then return 0 end
redis.call('HDEL', KEYS.context, 'snapshot', 'frozen_until')
-- Routers and schedulers look again for what they were refused meanwhile.
hint('out')
hint('active')
return 1
