-- Prolongs what a router holds.
-- KEYS 4 msg_out_coordinator, 5.. messages
-- ARGV 5 router, 6 end of the hold
-- Gives the places, from 1 on, of messages that it does not hold any more.
local no = closed()
if no then return no end
use_reserve()
local lost = {}
for k = 5, #KEYS do
  if redis.call('ZSCORE', KEYS[4], KEYS[k]) and is_hash(KEYS[k]) and redis.call('HGET', KEYS[k], 'router') == ARGV[5] then
    redis.call('ZADD', KEYS[4], ARGV[6], KEYS[k])
  else
    lost[#lost + 1] = k - 4
  end
end
return lost
