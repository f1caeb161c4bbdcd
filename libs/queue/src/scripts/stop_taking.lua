-- Stops handing jobs to an instance.
-- KEYS = presence
-- ARGV = instance life
--
-- Returns the jobs that it was handed and has not fetched; nothing to an instance that another life has replaced.
use_reserve()
local instance = ARGV.instance
if is_replaced(KEYS.presence, ARGV.life) then return {} end
take_nothing(instance)
local handed = redis.call('LRANGE', HANDED .. instance, 0, -1)
redis.call('DEL', HANDED .. instance)
return handed
