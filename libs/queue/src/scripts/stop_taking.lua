-- An instance is handed nothing more.
-- ARGV: 1 instance
-- Gives what it was handed and has not fetched.
use_reserve()
local instance = ARGV[1]
take_nothing(instance)
local handed = redis.call('LRANGE', HANDED .. instance, 0, -1)
redis.call('DEL', HANDED .. instance)
return handed
