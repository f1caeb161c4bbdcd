-- Reads the status of a flow, and has another one touched when it ends.
-- KEYS = flow awaited waiters
-- ARGV = flow flow_uid
--
-- `flow` is the one that waits, `awaited` the one that it waits for, and `waiters` are all that wait for that.
-- Returns the status; nothing when there is no such flow.
local no = closed()
if no then return no end
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'deleting')
if flow[1] ~= ARGV.flow_uid or flow[2] then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
local awaited = redis.call('HMGET', KEYS.awaited, 'status', 'deleting')
if not awaited[1] or awaited[2] then return '' end
if awaited[1] == 'created' or awaited[1] == 'started' then
  redis.call('SADD', KEYS.waiters, ARGV.flow .. '-' .. ARGV.flow_uid)
end
return awaited[1]
