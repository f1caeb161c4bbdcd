-- ARGV: 1 instance  2 free slots  3 a job key that a blocking pop gave, or nothing  4 its queue
--       5 how many of the queues demand nothing  6… these in order, then those of each level in the same order
local instance, free, places = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
local taken = {}

-- An entry counts only in the queue that its job was sent to.
local function claim(key, queue)
  if not is_job_key(key) then return end
  local job = JOB .. key
  local known = redis.call('HMGET', job, 'state', 'queue', 'seq', 'job', 'script', 'grants', 'legacy', 'old_hash')
  if known[1] ~= 'queued' or known[2] ~= queue then
    return
  end
  if known[7] and not withdraw(key, known[7], known[3]) then
    hand_over(key, queue, known[7], known[3])
    return
  end
  local time = now()
  redis.call('ZREM', UNCLAIMED .. queue, key)
  redis.call('ZADD', CLAIMS .. instance, known[3], key)
  redis.call('HINCRBY', STATS .. queue, 'taken', 1)
  redis.call('HSET', job, 'state', 'started', 'status', 'started', 'claimed_by', instance, 'started_at', time)
  if known[8] and redis.call('EXISTS', known[8]) == 1 then
    redis.pcall('HSET', known[8], 'status', 'started', 'updated_at', redis.call('TIME')[1])
  end
  tell(key, 'started', started_event(instance, time))
  taken[#taken + 1] = {key, time, known[4], known[5], known[6]}
end

-- Whether something waits that demands isolation. Mostly nothing does, and a place has one queue.
local demanding = #ARGV > 5 + places and redis.call('EXISTS', unpack(ARGV, 6 + places)) > 0

-- The queue of a place whose head came first; an entry that is of no use goes before all.
local function next_queue(from)
  local first, place = ARGV[from], nil
  if not demanding then return first end
  for i = from, #ARGV, places do
    local head = redis.call('LINDEX', ARGV[i], 0)
    local seq = head and tonumber(redis.call('ZSCORE', UNCLAIMED .. ARGV[i], head) or 0)
    if seq and (not place or seq < place) then first, place = ARGV[i], seq end
  end
  return first
end

if ARGV[3] ~= '' then
  if demanding then
    -- Another one of its place may have come before it.
    redis.call('LPUSH', ARGV[4], ARGV[3])
  else
    claim(ARGV[3], ARGV[4])
  end
end
-- Entries of jobs that were stopped or claimed otherwise are passed over; a few at a time, so that
-- the server is never held up.
local looks = 0
for i = 6, 5 + places do
  while #taken < free and looks < 1000 do
    looks = looks + 1
    local queue = next_queue(i)
    local key = redis.call('LPOP', queue)
    if not key then break end
    claim(key, queue)
  end
end
return taken
