-- Has everything removed that an import has written.
use_reserve()
local context = redis.call('HMGET', KEYS.context, 'uid', 'state')
if context[1] and context[1] ~= ARGV.uid then return 0 end
if context[2] == 'active' then return refuse('IMPORT_GONE', 'the import is complete') end
-- Supervisors are not told to forget the context: they may run it for the coordinator that exported it.
if context[1] then redis.call('HSET', KEYS.context, 'state', 'deleting') end
hint('removal')
return 1
