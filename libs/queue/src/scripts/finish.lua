-- ARGV: 1 job key  2 instance  3 status  4 event  5 offset behind the last piece of log  6 its event, or nothing
--       7… fields of the job's hash
use_reserve()
local key, instance = ARGV[1], ARGV[2]
local job = JOB .. key
local known = redis.call('HMGET', job, 'state', 'claimed_by', 'log_offset', 'end', unpack(TO_END))
if known[1] ~= 'started' or known[2] ~= instance then
  -- Sent again after a lost answer.
  if known[2] == instance and known[4] == ARGV[4] then
    return {1, known[1]}
  end
  return {0, known[1] or 'gone'}
end
if ARGV[6] ~= '' and tonumber(known[3]) < tonumber(ARGV[5]) then
  redis.call('HSET', job, 'log_offset', ARGV[5])
  tell(key, 'log', ARGV[6])
end
end_job(key, ARGV[3], ARGV[4], {unpack(known, 5, 4 + #TO_END)}, unpack(ARGV, 7))
redis.call('ZREM', CLAIMS .. instance, key)
return {1, ARGV[3]}
