-- Lets everybody find a context that was written.
-- KEYS = contexts
-- ARGV = context context_uid
--
-- `context_uid` is '' when somebody else has written it.
-- Whoever comes so late that it is being removed by now leaves it to that.
if ARGV.context_uid ~= '' and redis.call('HGET', KEYS.ids, 'removing:' .. ARGV.context) == ARGV.context_uid then return 0 end
-- The reservation has done its work: the context's id is in the set until the context is gone.
redis.call('HDEL', KEYS.ids, 'context:' .. ARGV.context, 'removing:' .. ARGV.context)
if redis.call('SADD', KEYS.contexts, ARGV.context) == 0 then return 0 end
return change('{"kind":"context","context_id":' .. ARGV.context .. '}')
