-- Removes the mark of an import that is complete, or was given up.
-- ARGV = context context_uid
use_reserve()
local mark = 'importing:' .. ARGV.context
if redis.call('HGET', KEYS.ids, mark) == ARGV.context_uid then redis.call('HDEL', KEYS.ids, mark) end
return 1
