-- ARGV: 1 instance  2 free slots  3 a job key that a blocking pop gave, or nothing  4… queues in order
local instance, free = ARGV[1], tonumber(ARGV[2])
local taken = {}

local function claim(key)
  local job = JOB .. key
  local known = redis.call('HMGET', job, 'status', 'queue', 'seq', 'job', 'script')
  if known[1] ~= 'queued' then
    return
  end
  local time = now()
  redis.call('ZREM', UNCLAIMED .. known[2], key)
  redis.call('ZADD', CLAIMS .. instance, known[3], key)
  redis.call('HINCRBY', STATS .. known[2], 'taken', 1)
  redis.call('HSET', job, 'status', 'started', 'claimed_by', instance, 'started_at', time)
  tell(key, 'started', started_event(instance, time))
  taken[#taken + 1] = {key, time, known[4], known[5]}
end

if ARGV[3] ~= '' then
  claim(ARGV[3])
end
-- Entries of jobs that were stopped or claimed otherwise are passed over; a few at a time, so that
-- the server is never held up.
local looks = 0
for i = 4, #ARGV do
  while #taken < free and looks < 1000 do
    looks = looks + 1
    local key = redis.call('LPOP', ARGV[i])
    if not key then break end
    claim(key)
  end
end
return taken
