-- ARGV: 1 job key  2 seconds of grace  3 seconds to keep a mark  4 event of a job that is stopped in its queue
local key = ARGV[1]
local job = JOB .. key
local known = redis.call('HMGET', job, 'status', 'queue', 'claimed_by')
if not known[1] then
  redis.call('SET', STOP .. key, ARGV[2], 'EX', ARGV[3])
  return {'unknown', ''}
end
if known[1] == 'queued' then
  unqueue(key, known[2])
  end_job(key, 'stopped', ARGV[4])
  return {'stopped', ''}
end
if known[1] == 'started' then
  tell_to_stop(key, known[3], ARGV[2])
  return {'stopping', known[3]}
end
return {known[1], known[3] or ''}
