-- Removes keys of a context that is going.
-- KEYS 4.. keys
local no = closed(true)
if no then return no end
if redis.call('HGET', KEYS[1], 'state') ~= 'deleting' then return refuse('CONTEXT_GONE', 'the context is in use') end
redis.call('UNLINK', unpack(KEYS, 4))
return 1
