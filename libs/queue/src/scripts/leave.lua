-- KEYS: 1 presence   ARGV: 1 instance  2 this life
use_reserve()
local present = redis.call('GET', KEYS[1])
if present then
  local known, life = pcall(function() return cjson.decode(present).life end)
  if known and life == ARGV[2] then
    redis.call('DEL', KEYS[1])
    redis.call('SREM', INSTANCES, ARGV[1])
    take_nothing(ARGV[1])
    put_handed_back(ARGV[1])
    return 1
  end
end
return 0
