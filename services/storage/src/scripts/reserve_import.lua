-- Marks an id for a context that is imported, so that no other context gets it.
-- KEYS = contexts
-- ARGV = context context_uid reserved_from
--
-- A reservation from before `reserved_from` has lapsed.
-- Returns 1; 0 when the id was marked for this context before.
local mark = redis.call('HGET', KEYS.ids, 'importing:' .. ARGV.context)
if mark == ARGV.context_uid then return 0 end
if mark then return refuse('CONTEXT_EXISTS', 'another context is imported under the number ' .. ARGV.context) end
if redis.call('SISMEMBER', KEYS.contexts, ARGV.context) == 1 then
  return refuse('CONTEXT_EXISTS', 'there is a context ' .. ARGV.context)
end
local reserved = redis.call('HGET', KEYS.ids, 'context:' .. ARGV.context)
local made_at = reserved and tonumber(string.match(reserved, ' ([%d.]+)$'))
if made_at and made_at > tonumber(ARGV.reserved_from) then
  return refuse('CONTEXT_EXISTS', 'a context ' .. ARGV.context .. ' is being created')
end
if redis.call('HEXISTS', KEYS.ids, 'removing:' .. ARGV.context) == 1 then
  return refuse('CONTEXT_EXISTS', 'a former context ' .. ARGV.context .. ' is still being removed')
end
redis.call('HSET', KEYS.ids, 'importing:' .. ARGV.context, ARGV.context_uid)
local former = redis.call('HGET', own('context_creators'), ARGV.context)
if former then
  redis.call('SREM', own('contexts_of:' .. former), ARGV.context)
  redis.call('HDEL', own('context_creators'), ARGV.context)
end
return 1
