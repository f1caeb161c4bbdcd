-- Nobody finds a context any more of which nothing is left but its own record.
-- KEYS 3 contexts
-- ARGV 4 context id, 5 uid
-- Gives the revision of the change; 0 when somebody else was faster: the id may be another context's by now.
-- The mark stays until the record is gone: by it the record is found when this storage dies before.
use_reserve()
if redis.call('HGET', KEYS[1], 'removing:' .. ARGV[4]) ~= ARGV[5] then return 0 end
if redis.call('SREM', KEYS[3], ARGV[4]) == 0 then return 0 end
local creator = redis.call('HGET', own('context_creators'), ARGV[4])
if creator then
  redis.call('SREM', own('contexts_of:' .. creator), ARGV[4])
  redis.call('HDEL', own('context_creators'), ARGV[4])
end
return change('{"kind":"context","context_id":' .. ARGV[4] .. '}')
