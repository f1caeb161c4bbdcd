-- Remembers which context a request wants removed, before that is begun: afterwards nothing of the context is left.
-- KEYS 3 request
-- ARGV 4 request hash, 5 seconds to remember it, 6 context id, 7 its uid
use_reserve()
local before, no = asked_before(KEYS[3], ARGV[4])
if no then return no end
if not before then remember(KEYS[3], ARGV[4], ARGV[5], 'context_id', ARGV[6], 'uid', ARGV[7]) end
return 1
