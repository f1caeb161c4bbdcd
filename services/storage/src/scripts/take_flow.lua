-- Makes somebody else the owner of a flow that runs.
-- KEYS 4 flow
-- ARGV 5 flow id, 6 owner
local no = closed()
if no then return no end
local flow = redis.call('HMGET', KEYS[4], 'status', 'generation', 'deleting')
if not flow[1] or flow[3] then return refuse('FLOW_GONE', 'flow ' .. ARGV[5]) end
if flow[1] == 'created' then return refuse('FLOW_NOT_STARTED', 'flow ' .. ARGV[5] .. ' was not started') end
if flow[1] ~= 'started' then return refuse('FLOW_ENDED', 'flow ' .. ARGV[5] .. ' is ' .. flow[1]) end

local revision = raise()
redis.call('HINCRBY', KEYS[4], 'epoch', 1)
redis.call('HSET', KEYS[4], 'owner', ARGV[6], 'updated_at', ARGV[3], 'revision', revision, 'commit_revision', revision)
emit_flow(revision, ARGV[5], 'started', flow[2])
hint('')
return revision
