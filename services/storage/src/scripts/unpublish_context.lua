-- Nobody finds a context any more of which nothing is left but its own record.
-- KEYS 3 contexts
-- ARGV 4 context id, 5 uid
-- Gives the revision of the change; 0 when somebody else was faster: the id may be another context's by now.
local mark = 'removing:' .. ARGV[4]
if redis.call('HGET', KEYS[1], mark) ~= ARGV[5] then return 0 end
redis.call('HDEL', KEYS[1], mark)
if redis.call('SREM', KEYS[3], ARGV[4]) == 0 then return 0 end
return change('{"kind":"context","context_id":' .. ARGV[4] .. '}')
