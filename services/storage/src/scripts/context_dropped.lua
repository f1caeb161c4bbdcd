-- Removes supervisors from those that still have to forget a context that is being removed.
-- KEYS = drops
--
-- After the arguments follow the ids of their runner records, at least one and some hundred at most.
local no = closed(true)
if no then return no end
use_reserve()
if redis.call('SREM', KEYS.drops, unpack(ARGV, ARGV_NAMED + 1)) > 0 and redis.call('EXISTS', KEYS.drops) == 0 then
  hint('removal')
end
return 1
