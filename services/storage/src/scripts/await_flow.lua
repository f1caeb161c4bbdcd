-- Tells where a flow stands, and has another one touched when it ends.
-- KEYS 4 the flow that waits, 5 the flow it waits for, 6 that one's waiters
-- ARGV 5 flow id, 6 flow uid, both of the flow that waits
-- Gives the status; nothing when there is no such flow.
local no = closed()
if no then return no end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'deleting')
if flow[1] ~= ARGV[6] or flow[2] then return refuse('FLOW_GONE', 'flow ' .. ARGV[5]) end
local awaited = redis.call('HMGET', KEYS[5], 'status', 'deleting')
if not awaited[1] or awaited[2] then return '' end
if awaited[1] == 'created' or awaited[1] == 'started' then
  redis.call('SADD', KEYS[6], ARGV[5] .. '-' .. ARGV[6])
end
return awaited[1]
