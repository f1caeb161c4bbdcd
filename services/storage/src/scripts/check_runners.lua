-- Checks runner records against the set of all of them.
-- KEYS = runners
--
-- After the arguments follow ids.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end
for a = ARGV_NAMED + 1, #ARGV do
  local id = ARGV[a]
  local name = 'runner:' .. id
  local runner, is_listed = redis.call('HMGET', own(name), 'id', 'deleted_at'), redis.call('SISMEMBER', KEYS.runners, id) == 1
  local is_there = runner[1] and (runner[2] or '') == ''
  if is_listed and not is_there then
    local problem = 'the runner record ' .. (runner[1] and 'was deleted' or 'does not exist') .. ', and is named in runners'
    if report('RUNNER_LIST', name, problem, 'the entry is removed') then redis.call('SREM', KEYS.runners, id) end
  elseif is_there and not is_listed and report('RUNNER_LIST', name, 'the runner record is not in runners', 'it is listed') then
    redis.call('SADD', KEYS.runners, id)
  end
end
return findings
