-- Writes an audit record for an action on data stored elsewhere, if the context is unchanged since the action was allowed.
-- ARGV = context_revision request_hash request_secs room
--
-- Permission was decided on `context_revision` of the context. `room` is `reserve` where Redis may be full. With a request id the
-- request follows the keys.
-- Returns 1; 0 when the same request was recorded before.
local no, context_revision = closed()
if no then return no end
local request = KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if before then return 0 end
if ARGV.room == 'reserve' then use_reserve() end

-- Nothing of the context changes, so no change number is used up.
audit(0)
remember(request, ARGV.request_hash, ARGV.request_secs)
return 1
