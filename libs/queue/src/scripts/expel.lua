-- Makes an instance absent whose process is known to be dead, unless another life of it is present.
-- KEYS = presence
-- ARGV = life
use_reserve()
if is_replaced(KEYS.presence, ARGV.life) then return 0 end
redis.call('DEL', KEYS.presence)
return 1
