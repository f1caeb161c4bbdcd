-- Appends a piece to a running job's log.
-- ARGV = key instance log_offset log
--
-- `log` is the event of the piece, `log_offset` the offset after it.
local job = JOB .. ARGV.key
local known = redis.call('HMGET', job, 'state', 'claimed_by', 'log_offset', 'stop_requested')
if known[1] ~= 'started' or known[2] ~= ARGV.instance then
  return {0, known[1] or 'gone'}
end
-- Uses the reserve for a job that has to stop: it cannot wait for room.
if known[4] then use_reserve() end
-- Ignores a repeat whose first answer was lost.
if tonumber(known[3]) < tonumber(ARGV.log_offset) then
  redis.call('HSET', job, 'log_offset', ARGV.log_offset)
  tell(ARGV.key, 'log', ARGV.log)
end
return {1, 'started'}
