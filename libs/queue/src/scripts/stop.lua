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
  redis.call('HSET', job, 'stop_requested', ARGV[2])
  local kind, group, n = string.match(known[3], '^([^:]+):([^:]+):([^:]+)$')
  local control = 'hero:q:ctl:type:' .. kind .. ':group:' .. group .. ':inst:' .. n
  redis.call('RPUSH', control, '{"command":"stop","job_key":"' .. key .. '","grace_secs":' .. ARGV[2] .. '}')
  -- Should the instance be gone, nobody reads this.
  redis.call('EXPIRE', control, 86400)
  return {'stopping', known[3]}
end
return {known[1], known[3] or ''}
