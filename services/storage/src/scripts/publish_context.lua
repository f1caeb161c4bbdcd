-- Adds a written context to the set of contexts, where everybody finds it.
-- KEYS = contexts
-- ARGV = context context_uid
--
-- `context_uid` is '' when another storage has written the context.
-- Leaves a context alone that is being removed by now.
if ARGV.context_uid ~= '' and redis.call('HGET', KEYS.ids, 'removing:' .. ARGV.context) == ARGV.context_uid then return 0 end
-- Ends the reservation: the context's id is in the set until the context is gone.
redis.call('HDEL', KEYS.ids, 'context:' .. ARGV.context, 'removing:' .. ARGV.context)
if redis.call('SADD', KEYS.contexts, ARGV.context) == 0 then return 0 end
return change('{"kind":"context","context_id":' .. ARGV.context .. '}')
