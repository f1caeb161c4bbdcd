-- ARGV: 1 job key  2 seconds of grace  3 seconds to keep a mark  4 event of a job that is stopped in its queue
--       5 reason, as JSON, of one that an old worker has
use_reserve()
local key = ARGV[1]
local job = JOB .. key
local known = redis.call('HMGET', job, 'state', 'hash')
if not known[1] or not known[2] then
  redis.call('SET', STOP .. key, ARGV[2], 'EX', ARGV[3])
  return {'unknown', ''}
end
if known[1] == 'queued' and take_out(key) then
  end_job(key, 'stopped', ARGV[4])
  return {'stopped', ''}
end
known = redis.call('HMGET', job, 'state', 'claimed_by', 'started_at', 'log_offset')
if known[1] == 'started' and is_old_worker(known[2]) then
  -- It cannot be told to stop.
  redis.call('ZREM', CLAIMS .. known[2], key)
  redis.call('HSET', job, 'error', string.sub(ARGV[5], 2, -2))
  end_job(key, 'stopped', ended_event('stopped', ARGV[5], known[2], known[3], known[4]))
  return {'stopped', ''}
end
if known[1] == 'started' then
  tell_to_stop(key, known[2], ARGV[2])
  return {'stopping', known[2]}
end
return {known[1], known[2] or ''}
