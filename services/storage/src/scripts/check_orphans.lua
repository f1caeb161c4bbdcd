-- Checks that flows exist to which records belong.
-- KEYS = held dead_letters blob_idle flows_active
--
-- After the arguments follow for each record the flow's id, and the key without what the layout adds.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end

-- Messages of one flow that are removed at once.
local MESSAGES_MAX = 200

-- Removes the messages that carried nodes of a flow. Without it they would count as those of a program.
local function remove_messages(flow, carriers)
  for _, message in ipairs(redis.call('SRANDMEMBER', carriers, MESSAGES_MAX)) do
    redis.call('SREM', carriers, message)
    redis.call('ZREM', KEYS.held, message)
    redis.call('ZREM', KEYS.dead_letters, message)
    if bare(message) and is_hash(message) and redis.call('HGET', message, 'flow_id') == flow then redis.call('UNLINK', message) end
  end
end

local function remove(flow, name)
  local key = own(name)
  if string.match(name, '^job:') then
    dereference(KEYS.blob_idle, key, redis.call('HMGET', key, 'script', 'files'))
  elseif string.match(name, ':messages$') then
    return remove_messages(flow, key)
  elseif string.match(name, ':waiters$') then
    return wake(key, KEYS.flows_active)
  end
  redis.call('UNLINK', key)
end

for a = ARGV_NAMED + 1, #ARGV, 2 do
  local flow, name = ARGV[a], ARGV[a + 1]
  local is_job = string.match(name, '^job:') ~= nil
  local is_there = redis.call('EXISTS', own(name)) == 1 and redis.call('EXISTS', own('flow:' .. flow)) == 0
  if is_there and (not is_job or redis.call('HGET', own(name), 'flow_id') == flow)
    and report('FLOW_PART_ORPHANED', name, 'flow ' .. flow .. ', to which it belongs, does not exist', 'it is removed') then
    remove(flow, name)
  end
end
return findings
