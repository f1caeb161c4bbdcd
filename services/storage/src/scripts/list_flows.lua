-- Lists flows under their statuses, and those that are over for measuring, where an older version left them out.
-- ARGV = kind
--
-- `kind` is `flows`; or `done`, when there are no more. After the arguments follow the ids of the flows.
-- Returns how many changes that took.
local no = closed()
if no then return no end
if ARGV.kind == 'done' then
  redis.call('HSET', KEYS.ids, 'flows_listed', 2)
  return 0
end
local changes = 0
for a = ARGV_NAMED + 1, #ARGV do
  local flow = redis.call('HMGET', own('flow:' .. ARGV[a]), 'status', 'cancel_requested_time', 'bytes')
  local status = flow[1]
  local place = redis.call('ZSCORE', own('flows'), ARGV[a])
  for _, one in ipairs(STATUSES) do
    local is_there, belongs = redis.call('ZSCORE', own('flows:' .. one), ARGV[a]), place and one == status
    if belongs and not is_there then
      changes = changes + redis.call('ZADD', own('flows:' .. one), place, ARGV[a])
    elseif is_there and not belongs then
      changes = changes + redis.call('ZREM', own('flows:' .. one), ARGV[a])
    end
  end
  if place and is_over(status, flow[2]) and (flow[3] or '') == '' then
    changes = changes + redis.call('SADD', own('flows_unmeasured'), ARGV[a])
  end
end
return changes
