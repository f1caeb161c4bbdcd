-- Writes a context whose id was reserved for it.
-- ARGV = context
--
-- Behind the arguments come fields.
-- Gives its revision; 0 when it was written before.
local there = redis.call('HMGET', KEYS.context, 'uid', 'emptied', 'state')
-- Of one that was removed nothing but its record may be left.
if there[1] and there[2] and there[1] ~= ARGV.uid then
  redis.call('DEL', KEYS.context)
elseif there[1] then
  if there[1] ~= ARGV.uid then return refuse('CONTEXT_EXISTS', ARGV.context) end
  if there[3] ~= 'active' then return refuse('CONTEXT_GONE', 'the context that this request made is being removed') end
  return 0
end
local revision = raise()
redis.call('HSET', KEYS.context, 'revision', revision, unpack(ARGV, ARGV_NAMED + 1))
-- There is nothing in it yet that was not counted.
redis.call('HSET', KEYS.ids, 'counted', 1)
emit(revision, '{"kind":"context"}')
hint('context')
return revision
