-- Changes members and settings of a context.
-- ARGV = context_revision request_hash request_secs room
--
-- The decision was made on `context_revision` of the context. `room` is `reserve` where Redis may be full. With a request id, the
-- request follows the keys; after the arguments follow fields.
-- Returns the revision of the change; 0 when the same request had made it before.
local no, context_revision = closed()
if no then return no end
local request = KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return 0 end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if ARGV.room == 'reserve' then use_reserve() end

local revision = raise()
redis.call('HSET', KEYS.context, 'updated_at', ARGV.now, 'revision', revision, unpack(ARGV, ARGV_NAMED + 1))
remember(request, ARGV.request_hash, ARGV.request_secs)
emit(revision, '{"kind":"context"}')
hint('context')
return revision
