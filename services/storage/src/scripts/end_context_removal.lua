-- Removes the record of a context of which nothing else is left.
use_reserve()
local context = redis.call('HMGET', KEYS[1], 'uid', 'emptied')
if context[1] == ARGV[2] and context[2] then redis.call('DEL', KEYS[1]) end
hint('removal')
return 1
