-- Writes a context whose id was reserved for it.
-- ARGV 2 its uid, 5 its id, 6.. fields
-- Gives its revision; 0 when it was written before.
local there = redis.call('HMGET', KEYS[1], 'uid', 'emptied', 'state')
-- Of one that was removed nothing but its record may be left.
if there[1] and there[2] and there[1] ~= ARGV[2] then
  redis.call('DEL', KEYS[1])
elseif there[1] then
  if there[1] ~= ARGV[2] then return refuse('CONTEXT_EXISTS', ARGV[5]) end
  if there[3] ~= 'active' then return refuse('CONTEXT_GONE', 'the context that this request made is being removed') end
  return 0
end
local revision = raise()
redis.call('HSET', KEYS[1], 'revision', revision, unpack(ARGV, 6))
-- There is nothing in it yet that was not counted.
redis.call('HSET', KEYS[2], 'counted', 1)
emit(revision, '{"kind":"context"}')
hint('context')
return revision
