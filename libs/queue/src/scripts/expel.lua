-- Makes an instance absent whose process is known to be dead, unless another life of it is there.
-- KEYS: 1 presence   ARGV: 1 the dead life
use_reserve()
local present = redis.call('GET', KEYS[1])
if not present then return 1 end
local known, life = pcall(function() return cjson.decode(present).life end)
if known and life == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
return 0
