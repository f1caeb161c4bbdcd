-- Prolongs the holds of a router.
-- KEYS = held
-- ARGV = router hold_end
--
-- After the keys follow the messages.
-- Returns the places, from 1 on, of messages that the router does not hold any more.
-- Works while the context is exported: an export has what routers hold, not for how long.
local no = closed(false, true)
if no then return no end
use_reserve()
local lost = {}
for k = KEYS_NAMED + 1, #KEYS do
  if redis.call('ZSCORE', KEYS.held, KEYS[k]) and is_hash(KEYS[k]) and redis.call('HGET', KEYS[k], 'router') == ARGV.router then
    redis.call('ZADD', KEYS.held, ARGV.hold_end, KEYS[k])
  else
    lost[#lost + 1] = k - KEYS_NAMED
  end
end
return lost
