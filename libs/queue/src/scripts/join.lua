-- KEYS: 1 presence   ARGV: 1 instance  2 this life  3 presence as JSON  4 seconds to live  5 take over
use_reserve()
if ARGV[5] ~= '1' and is_replaced(KEYS[1], ARGV[2]) then return redis.call('GET', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[3], 'EX', ARGV[4])
redis.call('SADD', INSTANCES, ARGV[1])
return false
