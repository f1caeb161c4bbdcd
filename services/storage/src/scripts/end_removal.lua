-- Removes the flow itself, when nothing else is left that belongs to it.
-- KEYS = flow nodes carriers signals flows inputs waiters flows_active
-- ARGV = flow flow_uid
--
-- `carriers` are the flow's messages, `waiters` the flows that wait for it.
local no = closed()
if no then return no end
use_reserve()
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'deleting', 'generation', 'message', 'bytes')
if flow[1] ~= ARGV.flow_uid or not flow[2] then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
if redis.call('EXISTS', KEYS.nodes, KEYS.carriers) > 0 then return refuse('RECORDS_LEFT', 'flow ' .. ARGV.flow) end

local revision = raise()
redis.call('UNLINK', KEYS.signals, KEYS.inputs)
redis.call('ZREM', KEYS.flows, ARGV.flow)
for _, status in ipairs(STATUSES) do list_flow(ARGV.flow, nil, status) end
leave_ended(ARGV.flow, flow[5])
-- Announces the removal first, because the event reads the flow's caller from the record.
emit_flow(revision, ARGV.flow, nil, flow[3])
redis.call('DEL', KEYS.flow)
-- Ends the message that the flow was made of: it waits for the flow's end, and would wait forever.
local message = flow[4] and flow[4] ~= '' and own(flow[4])
if message and is_hash(message) and kept_in(message, own('letters')) then
  local waits = redis.call('HMGET', message, 'flow_id', 'status')
  if waits[1] == ARGV.flow and waits[2] == 'acknowledged' then
    local why = 'flow ' .. ARGV.flow .. ' was removed before it ended'
    redis.call('HSET', message, 'status', 'error', 'error', why, 'updated_at', ARGV.now, 'revision', revision)
    note(message, why)
    emit_message(revision, message, 'error')
    done(revision, message)
  end
end
hint('')
wake(KEYS.waiters, KEYS.flows_active)
return revision
