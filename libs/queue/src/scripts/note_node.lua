-- Keeps through which node of a bus a coordinator is heard.
-- ARGV = coordinator node
--
-- Gives 1 when that is kept; 0 when no context is bound to it, so that nothing is.
if redis.call('EXISTS', CONTEXTS .. ARGV.coordinator) == 0 then return 0 end
note_node(ARGV.coordinator, ARGV.node)
return 1
