-- An instance is handed nothing more.
-- KEYS = presence
-- ARGV = instance life
--
-- Gives what it was handed and has not fetched; nothing to one whose place another has taken.
use_reserve()
local instance = ARGV.instance
if is_replaced(KEYS.presence, ARGV.life) then return {} end
take_nothing(instance)
local handed = redis.call('LRANGE', HANDED .. instance, 0, -1)
redis.call('DEL', HANDED .. instance)
return handed
