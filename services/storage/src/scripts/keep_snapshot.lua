-- Keeps a context frozen for its export.
-- ARGV = snapshot frozen_until
local no = closed(false, true)
if no then return no end
return keep(ARGV.snapshot, ARGV.frozen_until) or 1
