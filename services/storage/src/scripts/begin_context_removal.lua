-- Marks a context as being removed, and stores which supervisors have to forget it.
-- KEYS = runners drops runners_deleted
-- ARGV = context_revision
--
-- Permission was decided on `context_revision` of the context.
-- Returns the revision of the change; 0 when it was marked already.
local no = closed(true)
if no then return no end
use_reserve()
local context = redis.call('HMGET', KEYS.context, 'state', 'revision')
if context[1] == 'deleting' then
  hint('removal')
  return 0
end
if context[2] ~= ARGV.context_revision then return refuse('CONTEXT_CHANGED', 'the context changed meanwhile') end

local revision = raise()
redis.call('HSET', KEYS.context, 'state', 'deleting', 'updated_at', ARGV.now, 'revision', revision)
-- Keeps the principal that asked for the removal, for the audit record that is written when nothing else is left.
if #ARGV.bits > 16 then redis.call('HSET', KEYS.context, 'removed_by', string.sub(ARGV.bits, 17)) end
redis.call('SUNIONSTORE', KEYS.drops, KEYS.runners)
-- Includes deleted runners: the context's data may still be on their machines.
local deleted = redis.call('ZRANGE', KEYS.runners_deleted, 0, -1)
for from = 1, #deleted, 1000 do
  redis.call('SADD', KEYS.drops, unpack(deleted, from, math.min(from + 999, #deleted)))
end
emit(revision, '{"kind":"context"}')
hint('context')
hint('removal')
return revision
