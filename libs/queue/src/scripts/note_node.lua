-- ARGV: 1 coordinator  2 the node of a bus through which it is heard
-- 1 when that is kept; 0 when no context is bound to it, so that nothing is.
if redis.call('EXISTS', CONTEXTS .. ARGV[1]) == 0 then return 0 end
note_node(ARGV[1], ARGV[2])
return 1
