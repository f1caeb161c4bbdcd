-- Makes an instance present.
-- KEYS = presence
-- ARGV = instance life record live_secs is_takeover
--
-- `record` is the presence as JSON. `is_takeover` means that the present life is dead.
-- Returns the presence of another life if there is one.
use_reserve()
if ARGV.is_takeover ~= '1' and is_replaced(KEYS.presence, ARGV.life) then return redis.call('GET', KEYS.presence) end
redis.call('SET', KEYS.presence, ARGV.record, 'EX', ARGV.live_secs)
redis.call('SADD', INSTANCES, ARGV.instance)
return false
