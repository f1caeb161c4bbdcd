-- Lets everybody find a context that was written.
-- KEYS 3 contexts
-- ARGV 4 context id
-- The reservation has done its work: the context's id is in the set until the context is gone.
redis.call('HDEL', KEYS[1], 'context:' .. ARGV[4], 'removing:' .. ARGV[4])
if redis.call('SADD', KEYS[3], ARGV[4]) == 0 then return 0 end
return change('{"kind":"context","context_id":' .. ARGV[4] .. '}')
