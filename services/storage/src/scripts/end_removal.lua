-- Removes the flow itself, when nothing is left that belongs to it.
-- KEYS 4 flow, 5 its nodes, 6 its messages, 7 its signals, 8 flows, 9 its inputs, 10 its waiters, 11 flows_active
-- ARGV 5 flow id, 6 flow uid
local no = closed()
if no then return no end
use_reserve()
local flow = redis.call('HMGET', KEYS[4], 'uid', 'deleting', 'generation', 'message')
if flow[1] ~= ARGV[6] or not flow[2] then return refuse('FLOW_GONE', 'flow ' .. ARGV[5]) end
if redis.call('EXISTS', KEYS[5], KEYS[6]) > 0 then return refuse('RECORDS_LEFT', 'flow ' .. ARGV[5]) end

local revision = raise()
redis.call('UNLINK', KEYS[7], KEYS[9])
redis.call('ZREM', KEYS[8], ARGV[5])
for _, status in ipairs(STATUSES) do list_flow(ARGV[5], nil, status) end
-- It says whose flow it was.
emit_flow(revision, ARGV[5], nil, flow[3])
redis.call('DEL', KEYS[4])
-- The message that it was made of, and that waits for its end, would wait for ever.
local message = flow[4] and flow[4] ~= '' and own(flow[4])
if message and is_hash(message) and kept_in(message, own('letters')) then
  local waits = redis.call('HMGET', message, 'flow_id', 'status')
  if waits[1] == ARGV[5] and waits[2] == 'acknowledged' then
    local why = 'flow ' .. ARGV[5] .. ' was removed before it ended'
    redis.call('HSET', message, 'status', 'error', 'error', why, 'updated_at', ARGV[3], 'revision', revision)
    note(message, why)
    emit_message(revision, message, 'error')
    done(revision, message)
  end
end
hint('')
wake(KEYS[10], KEYS[11])
return revision
