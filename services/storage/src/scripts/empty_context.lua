-- Marks a context that is being removed as empty except for its own record.
local no = closed(true)
if no then return no end
use_reserve()
if redis.call('HGET', KEYS.context, 'state') ~= 'deleting' then return refuse('CONTEXT_GONE', 'the context is in use') end
redis.call('HSET', KEYS.context, 'emptied', '1')
return 1
