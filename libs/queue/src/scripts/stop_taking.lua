-- An instance is handed nothing more.
-- KEYS: 1 presence   ARGV: 1 instance  2 this life
-- Gives what it was handed and has not fetched; nothing to one whose place another has taken.
use_reserve()
local instance = ARGV[1]
if is_replaced(KEYS[1], ARGV[2]) then return {} end
take_nothing(instance)
local handed = redis.call('LRANGE', HANDED .. instance, 0, -1)
redis.call('DEL', HANDED .. instance)
return handed
