-- Takes away the mark of a context of which not even its record is left.
-- KEYS 1 ids
-- ARGV 4 context id, 5 uid
use_reserve()
local mark = 'removing:' .. ARGV[4]
if redis.call('HGET', KEYS[1], mark) == ARGV[5] then redis.call('HDEL', KEYS[1], mark) end
return 1
