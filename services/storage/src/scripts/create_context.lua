-- Writes a context whose id was reserved for it.
-- ARGV 2 its uid, 5 its id, 6.. fields
-- Gives its revision.
local there = redis.call('HMGET', KEYS[1], 'uid', 'revision')
if there[1] then
  if there[1] ~= ARGV[2] then return refuse('CONTEXT_EXISTS', ARGV[5]) end
  return tonumber(there[2])
end
local revision = raise()
redis.call('HSET', KEYS[1], 'revision', revision, unpack(ARGV, 6))
emit(revision, '{"kind":"context"}')
hint('context')
return revision
