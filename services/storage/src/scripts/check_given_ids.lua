-- Checks that counters of ids are not behind ids that were given.
--
-- After the arguments follow for each counter its field in `ids`, and the greatest id that was seen.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end
for a = ARGV_NAMED + 1, #ARGV, 2 do
  local field, given = ARGV[a], ARGV[a + 1]
  local last = redis.call('HGET', KEYS.ids, field) or '0'
  local problem = 'counter ' .. field .. ' is ' .. string.sub(last, 1, 40) .. ', and ' .. given .. ' was given'
  if (tonumber(last) or 0) < tonumber(given) and report('ID_COUNTER_BEHIND', 'ids', problem, 'the counter is raised') then
    redis.call('HSET', KEYS.ids, field, given)
  end
end
return findings
