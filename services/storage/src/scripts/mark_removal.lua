-- Marks a context of which nothing but its record is left.
-- ARGV = context context_uid
use_reserve()
redis.call('HSET', KEYS.ids, 'removing:' .. ARGV.context, ARGV.context_uid)
return 1
