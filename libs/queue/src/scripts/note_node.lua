-- Records the node of a bus through which a coordinator is heard.
-- ARGV = coordinator node
--
-- Returns 1 if it is recorded; 0 if no context is bound to the coordinator, so that nothing is.
if redis.call('EXISTS', CONTEXTS .. ARGV.coordinator) == 0 then return 0 end
note_node(ARGV.coordinator, ARGV.node)
return 1
