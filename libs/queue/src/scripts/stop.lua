-- Stops a job wherever it is.
-- ARGV = key grace_secs refuse_secs event reason
--
-- `refuse_secs` is how long the job is refused if it has not arrived yet. `event` is the end of a job that is stopped in its
-- queue, `reason` the reason for the end of a job that an old worker has, as JSON.
use_reserve()
local key = ARGV.key
local job = JOB .. key
local known = redis.call('HMGET', job, 'state', 'hash')
if not known[1] or not known[2] then
  redis.call('SET', STOP .. key, ARGV.grace_secs, 'EX', ARGV.refuse_secs)
  return {'unknown', ''}
end
if known[1] == 'queued' and take_out(key) then
  end_job(key, 'stopped', ARGV.event)
  return {'stopped', ''}
end
known = redis.call('HMGET', job, 'state', 'claimed_by', 'started_at', 'log_offset')
if known[1] == 'started' and is_old_worker(known[2]) then
  -- Ends the job at once: an old worker cannot be told to stop.
  redis.call('ZREM', CLAIMS .. known[2], key)
  redis.call('HSET', job, 'error', string.sub(ARGV.reason, 2, -2))
  end_job(key, 'stopped', ended_event('stopped', ARGV.reason, known[2], known[3], known[4]))
  return {'stopped', ''}
end
if known[1] == 'started' then
  tell_to_stop(key, known[2], ARGV.grace_secs)
  return {'stopping', known[2]}
end
return {known[1], known[2] or ''}
