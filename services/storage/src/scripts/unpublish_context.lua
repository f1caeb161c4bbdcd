-- Removes a context of which only its record is left from the set of contexts, where it is found.
-- KEYS = contexts
-- ARGV = context context_uid
--
-- Returns the revision of the change; 0 when another storage was faster: the id may be another context's by now.
-- Keeps the mark until the record is gone: by the mark the record is found if this storage dies before.
use_reserve()
if redis.call('HGET', KEYS.ids, 'removing:' .. ARGV.context) ~= ARGV.context_uid then return 0 end
if redis.call('SREM', KEYS.contexts, ARGV.context) == 0 then return 0 end
local creator = redis.call('HGET', own('context_creators'), ARGV.context)
if creator then
  redis.call('SREM', own('contexts_of:' .. creator), ARGV.context)
  redis.call('HDEL', own('context_creators'), ARGV.context)
end
return change('{"kind":"context","context_id":' .. ARGV.context .. '}')
