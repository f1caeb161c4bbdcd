-- KEYS: 1 presence   ARGV: 1 instance  2 this life  3 presence as JSON  4 seconds to live  5 take over
use_reserve()
local present = redis.call('GET', KEYS[1])
if present and ARGV[5] ~= '1' then
  local known, life = pcall(function() return cjson.decode(present).life end)
  if not known or life ~= ARGV[2] then
    return present
  end
end
redis.call('SET', KEYS[1], ARGV[3], 'EX', ARGV[4])
redis.call('SADD', INSTANCES, ARGV[1])
return false
