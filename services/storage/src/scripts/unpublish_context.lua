-- Nobody finds a context any more of which nothing is left but its own record.
-- KEYS = contexts
-- ARGV = context context_uid
--
-- Gives the revision of the change; 0 when somebody else was faster: the id may be another context's by now.
-- The mark stays until the record is gone: by it the record is found when this storage dies before.
use_reserve()
if redis.call('HGET', KEYS.ids, 'removing:' .. ARGV.context) ~= ARGV.context_uid then return 0 end
if redis.call('SREM', KEYS.contexts, ARGV.context) == 0 then return 0 end
local creator = redis.call('HGET', own('context_creators'), ARGV.context)
if creator then
  redis.call('SREM', own('contexts_of:' .. creator), ARGV.context)
  redis.call('HDEL', own('context_creators'), ARGV.context)
end
return change('{"kind":"context","context_id":' .. ARGV.context .. '}')
