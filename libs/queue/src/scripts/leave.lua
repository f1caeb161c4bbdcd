-- KEYS: 1 presence   ARGV: 1 instance  2 this life
use_reserve()
local present = redis.call('GET', KEYS[1])
if present then
  local known, life = pcall(function() return cjson.decode(present).life end)
  if known and life == ARGV[2] then
    redis.call('DEL', KEYS[1])
    take_nothing(ARGV[1])
    -- What it holds and does not know of ends as lost, when it is looked for.
    if redis.call('EXISTS', CLAIMS .. ARGV[1]) == 0 then redis.call('SREM', INSTANCES, ARGV[1]) end
    return 1
  end
end
return 0
