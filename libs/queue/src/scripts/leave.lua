-- Makes an instance absent if the present life is this one.
-- KEYS = presence
-- ARGV = instance life
use_reserve()
local present = redis.call('GET', KEYS.presence)
if present then
  local known, life = pcall(function() return cjson.decode(present).life end)
  if known and life == ARGV.life then
    redis.call('DEL', KEYS.presence)
    take_nothing(ARGV.instance)
    -- Keeps an instance with claims that it does not know of in the set: they end as lost when it is looked for.
    if redis.call('EXISTS', CLAIMS .. ARGV.instance) == 0 then redis.call('SREM', INSTANCES, ARGV.instance) end
    return 1
  end
end
return 0
