-- Writes down that somebody does what is kept elsewhere, as long as the context is as it was when that was allowed.
-- KEYS 4 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 request hash, 7 seconds to remember it,
--      8 `reserve` where Redis may be full
-- Gives 1; 0 when the same request was written down before.
local no, context_revision = closed()
if no then return no end
local before, other = asked_before(KEYS[4], ARGV[6])
if other then return other end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if before then return 0 end
if ARGV[8] == 'reserve' then use_reserve() end

-- Nothing of the context changes, so that no number of a change is used up.
audit(0)
remember(KEYS[4], ARGV[6], ARGV[7])
return 1
