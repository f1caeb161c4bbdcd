-- Marks a context of which nothing but its record is left.
-- KEYS 1 ids
-- ARGV 4 context id, 5 uid
use_reserve()
redis.call('HSET', KEYS[1], 'removing:' .. ARGV[4], ARGV[5])
return 1
