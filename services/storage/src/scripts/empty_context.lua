-- Notes that nothing is left of a context that is going but its own record.
local no = closed(true)
if no then return no end
use_reserve()
if redis.call('HGET', KEYS[1], 'state') ~= 'deleting' then return refuse('CONTEXT_GONE', 'the context is in use') end
redis.call('HSET', KEYS[1], 'emptied', '1')
return 1
