-- Marks a context as going, and keeps which supervisors have to forget it.
-- KEYS 4 runners, 5 drops, 6 runners_deleted
-- ARGV 5 the context's revision that permission was decided on
-- Gives the revision of the change; 0 when it was going already.
local no = closed(true)
if no then return no end
use_reserve()
local context = redis.call('HMGET', KEYS[1], 'state', 'revision')
if context[1] == 'deleting' then
  hint('removal')
  return 0
end
if context[2] ~= ARGV[5] then return refuse('CONTEXT_CHANGED', 'the context changed meanwhile') end

local revision = raise()
redis.call('HSET', KEYS[1], 'state', 'deleting', 'updated_at', ARGV[3], 'revision', revision)
-- Who asked for it is written down where it is left, when nothing else is.
if #ARGV[4] > 16 then redis.call('HSET', KEYS[1], 'removed_by', string.sub(ARGV[4], 17)) end
redis.call('SUNIONSTORE', KEYS[5], KEYS[4])
-- What ran at a runner before it was deleted lies there still.
local deleted = redis.call('ZRANGE', KEYS[6], 0, -1)
for from = 1, #deleted, 1000 do
  redis.call('SADD', KEYS[5], unpack(deleted, from, math.min(from + 999, #deleted)))
end
emit(revision, '{"kind":"context"}')
hint('context')
hint('removal')
return revision
