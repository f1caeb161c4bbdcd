-- Writes down that somebody does what is kept elsewhere, as long as the context is as it was when that was allowed.
-- ARGV = context_revision request_hash request_secs room
--
-- Permission was decided on `context_revision` of the context. `room` is `reserve` where Redis may be full. With a request id the
-- request comes behind the keys.
-- Gives 1; 0 when the same request was written down before.
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

-- Nothing of the context changes, so that no number of a change is used up.
audit(0)
remember(request, ARGV.request_hash, ARGV.request_secs)
return 1
