-- Removes the mark of a context of which not even its record is left.
-- ARGV = context context_uid
use_reserve()
local mark = 'removing:' .. ARGV.context
if redis.call('HGET', KEYS.ids, mark) == ARGV.context_uid then redis.call('HDEL', KEYS.ids, mark) end
return 1
