-- Makes an instance absent whose process is known to be dead, unless another life of it is there.
-- KEYS: 1 presence   ARGV: 1 the dead life
use_reserve()
if is_replaced(KEYS[1], ARGV[1]) then return 0 end
redis.call('DEL', KEYS[1])
return 1
