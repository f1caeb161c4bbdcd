-- Lets everybody find a context that was written.
-- KEYS 3 contexts
-- ARGV 4 context id, 5 its uid ('' when somebody else has written it)
-- Whoever comes so late that it is being removed by now leaves it to that.
if ARGV[5] ~= '' and redis.call('HGET', KEYS[1], 'removing:' .. ARGV[4]) == ARGV[5] then return 0 end
-- The reservation has done its work: the context's id is in the set until the context is gone.
redis.call('HDEL', KEYS[1], 'context:' .. ARGV[4], 'removing:' .. ARGV[4])
if redis.call('SADD', KEYS[3], ARGV[4]) == 0 then return 0 end
return change('{"kind":"context","context_id":' .. ARGV[4] .. '}')
