-- Checks that flows which are to be looked at later exist, and are not over.
-- KEYS = due
--
-- After the arguments follow entries.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end
for a = ARGV_NAMED + 1, #ARGV do
  local entry = ARGV[a]
  local id, uid = string.match(entry, '^(%d+)%-(%x+)$')
  local key = own('flow:' .. (id or '0'))
  local flow = is_hash(key) and redis.call('HMGET', key, 'uid', 'status', 'cancel_requested_time') or {}
  local problem
  if not id then
    problem = 'is no flow'
  elseif flow[1] ~= uid then
    problem = 'does not exist'
  elseif is_over(flow[2], flow[3]) then
    problem = 'is over'
  end
  if problem and redis.call('ZSCORE', KEYS.due, entry)
    and report('DUE_STALE', 'due', 'names ' .. string.sub(entry, 1, 80) .. ', which ' .. problem, 'the entry is removed') then
    redis.call('ZREM', KEYS.due, entry)
  end
end
return findings
