-- ARGV: 1 instance  2 free slots  3 a job key that a blocking pop gave, or nothing  4 its queue
--       5 how many of the queues are open: demand nothing, and are not for our instances alone  6 how many slots the instance has
--       7… these queues in order, then those of each level in the same order
-- Gives what was taken, and whether more may be there: what comes later is given to a blocking pop.
local instance, free, places, slots = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[6])
local taken = {}
-- Ends this script where Redis has no room for what a job makes: at `maxmemory` Redis refuses this write, which changes nothing,
-- before anything is taken from a queue.
local has_room = false
local function need_room()
  if not has_room then redis.call('LPUSHX', NOTHING, '') end
  has_room = true
end

-- How long somebody counts as there who had a job sent here.
local PRESENT_SECS = 600
-- Where several are there, the last slots are for those that have less: nobody waits for long jobs of somebody else only.
local most = slots > 1 and slots - math.max(1, math.floor(slots / 4)) or slots
local running, held = redis.call('ZCARD', CLAIMS .. instance), nil

-- How many slots each owner has; nothing when there is but one.
local function slots_of_all()
  if redis.call('ZCOUNT', CALLERS, now() - PRESENT_SECS, '+inf') < 2 then return false end
  local all = {}
  for _, key in ipairs(redis.call('ZRANGE', CLAIMS .. instance, 0, -1)) do
    local owner = owner_of(unpack(redis.call('HMGET', JOB .. key, 'coordinator', 'caller'), 1, 2))
    all[owner] = (all[owner] or 0) + 1
  end
  return all
end

-- Whether an owner has as many slots as one may have. Mostly there are slots enough, and nobody is looked at.
local function has_most(owner)
  if running < most then return false end
  if held == nil then held = slots_of_all() end
  return held and (held[owner] or 0) >= most
end

-- Whether jobs were set aside.
local has_aside = redis.call('EXISTS', ASIDE) == 1

-- An entry counts only in the queue that its job was sent to.
local function claim(key, queue)
  if not is_job_key(key) then return put_foreign(queue, key) end
  local job = JOB .. key
  local known = redis.call('HMGET', job, 'state', 'queue', 'seq', 'job', 'script', 'grants', 'legacy', 'old_hash',
    'coordinator', 'caller', 'context_id', 'flow_id')
  if known[1] ~= 'queued' or known[2] ~= queue then
    return
  end
  local owner = owner_of(known[9], known[10])
  if has_most(owner) then
    set_aside(key, queue, owner, known[3])
    has_aside = true
    return
  end
  if known[7] and not withdraw(key, known[7], known[3]) then
    hand_over(key, queue, known[7], known[3])
    return
  end
  local time = now()
  running = running + 1
  if held then held[owner] = (held[owner] or 0) + 1 end
  redis.call('ZREM', UNCLAIMED .. queue, key)
  redis.call('ZADD', CLAIMS .. instance, known[3], key)
  redis.call('HINCRBY', STATS .. queue, 'taken', 1)
  redis.call('HSET', job, 'state', 'started', 'status', 'started', 'claimed_by', instance, 'started_at', time)
  if known[8] and redis.call('EXISTS', known[8]) == 1 then
    redis.pcall('HSET', known[8], 'status', 'started', 'updated_at', read_clock()[1])
  end
  tell_of(key, 'started', started_event(instance, time), known[9], known[11], known[12])
  taken[#taken + 1] = {key, time, known[4], known[5], known[6]}
end

-- Mostly nothing waits, and one look says so.
local waits = redis.call('EXISTS', unpack(ARGV, 7)) > 0
-- Whether something waits that demands isolation, or is for our instances alone. Mostly nothing does, and a place has one queue.
local demanding = waits and #ARGV > 6 + places and redis.call('EXISTS', unpack(ARGV, 7 + places)) > 0

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
  need_room()
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

-- Those who had been set aside, by queue, when there are any.
local aside = {}
if has_aside then
  need_room()
  for _, place in ipairs(redis.call('SMEMBERS', ASIDE)) do
    local queue, owner = string.match(place, '^(%S+) (%S+)$')
    aside[queue] = aside[queue] or {}
    table.insert(aside[queue], owner)
  end
end

-- Takes what was set aside in a queue of those who have room by now.
local function take_aside(queue)
  for _, owner in ipairs(aside[queue] or {}) do
    while #taken < free and looks < 1000 and not has_most(owner) do
      looks = looks + 1
      local key = next_aside(queue, owner)
      if not key then break end
      claim(key, queue)
    end
  end
end

for i = 7, (waits or has_aside) and 6 + places or 0 do
  for level = i, #ARGV, places do take_aside(ARGV[level]) end
  while #taken < free and looks < 1000 do
    looks = looks + 1
    local queue = next_queue(i)
    if not has_room and redis.call('EXISTS', queue) == 0 then break end
    need_room()
    local key = redis.call('LPOP', queue)
    if not key then break end
    claim(key, queue)
  end
end
local is_empty = #taken < free and looks < 1000 and not has_aside
return {taken, is_empty and 0 or 1}
