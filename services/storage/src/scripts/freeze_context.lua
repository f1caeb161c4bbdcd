-- Freezes a context for an export: until the end of the freeze it takes no changes.
-- ARGV = context_revision snapshot frozen_until
--
-- Permission was decided on `context_revision` of the context.
-- Returns the change counter.
local no, context_revision = closed(false, false)
if no then return no end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
use_reserve()
audit(0)
redis.call('HSET', KEYS.context, 'snapshot', ARGV.snapshot, 'frozen_until', ARGV.frozen_until)
return redis.call('HGET', KEYS.ids, 'revision') or '0'
