-- Removes the record of a context of which nothing else is left.
use_reserve()
local context = redis.call('HMGET', KEYS.context, 'uid', 'emptied')
if context[1] == ARGV.uid and context[2] then redis.call('DEL', KEYS.context) end
hint('removal')
return 1
