-- ARGV: 1 job key  2 instance  3 offset behind the piece  4 event
local job = JOB .. ARGV[1]
local known = redis.call('HMGET', job, 'state', 'claimed_by', 'log_offset', 'stop_requested')
if known[1] ~= 'started' or known[2] ~= ARGV[2] then
  return {0, known[1] or 'gone'}
end
-- One that has to stop cannot wait for room to end.
if known[4] then use_reserve() end
-- Sent again after a lost answer.
if tonumber(known[3]) < tonumber(ARGV[3]) then
  redis.call('HSET', job, 'log_offset', ARGV[3])
  tell(ARGV[1], 'log', ARGV[4])
end
return {1, 'started'}
