-- Ends a running job.
-- ARGV = key instance status event log_offset log
--
-- `event` is the event of the end. `log` is the event of the last piece of log, '' for none, and `log_offset` the offset after it.
-- After the arguments follow fields of the job's hash.
use_reserve()
local key, instance = ARGV.key, ARGV.instance
local job = JOB .. key
local known = redis.call('HMGET', job, 'state', 'claimed_by', 'log_offset', 'end', unpack(TO_END))
if known[1] ~= 'started' or known[2] ~= instance then
  -- Accepts a repeat whose first answer was lost.
  if known[2] == instance and known[4] == ARGV.event then
    return {1, known[1]}
  end
  return {0, known[1] or 'gone'}
end
if ARGV.log ~= '' and tonumber(known[3]) < tonumber(ARGV.log_offset) then
  redis.call('HSET', job, 'log_offset', ARGV.log_offset)
  tell(key, 'log', ARGV.log)
end
end_job(key, ARGV.status, ARGV.event, {unpack(known, 5, 4 + #TO_END)}, unpack(ARGV, ARGV_NAMED + 1))
redis.call('ZREM', CLAIMS .. instance, key)
return {1, ARGV.status}
