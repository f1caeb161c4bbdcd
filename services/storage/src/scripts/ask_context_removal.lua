-- Remembers which context a request wants removed, before the removal begins: afterwards nothing of the context is left.
-- KEYS = request
-- ARGV = request_hash request_secs context context_uid
use_reserve()
local before, no = asked_before(KEYS.request, ARGV.request_hash)
if no then return no end
if not before then
  remember(KEYS.request, ARGV.request_hash, ARGV.request_secs, 'context_id', ARGV.context, 'uid', ARGV.context_uid)
end
return 1
