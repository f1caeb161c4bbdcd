-- Writes a context whose id was reserved for it.
-- ARGV = context
--
-- After the arguments follow fields.
-- Returns its revision; 0 when it was written before.
local there = redis.call('HMGET', KEYS.context, 'uid', 'emptied', 'state')
-- Removes the record of an earlier context of this id, of which nothing else is left.
if there[1] and there[2] and there[1] ~= ARGV.uid then
  redis.call('DEL', KEYS.context)
elseif there[1] then
  -- A context that is being imported is not complete: nobody may publish it.
  if there[3] == 'importing' then return refuse('CONTEXT_RESERVED', ARGV.context) end
  if there[1] ~= ARGV.uid then return refuse('CONTEXT_EXISTS', ARGV.context) end
  if there[3] ~= 'active' then return refuse('CONTEXT_GONE', 'the context that this request made is being removed') end
  return 0
end
local revision = raise()
redis.call('HSET', KEYS.context, 'revision', revision, unpack(ARGV, ARGV_NAMED + 1))
-- Marks the context as counted: it has nothing yet that was not.
redis.call('HSET', KEYS.ids, 'counted', 1)
emit(revision, '{"kind":"context"}')
hint('context')
return revision
