-- Gives waiting jobs to an instance.
-- ARGV = instance free popped popped_from places slots
--
-- `free` is how many of its `slots` are free. `popped` is a job key that a blocking pop gave, '' for none, and `popped_from` its
-- queue. `places` is how many of the instance's queues are open: demand nothing, and are not for our instances alone. Behind the
-- arguments come these in order, then those of each level in the same order; last the ends of their names, each between commas.
-- Gives what was taken, whether more may be there, since what comes later is given to a blocking pop or handed to the instance,
-- and what it was handed.
local demands = table.remove(ARGV)
local instance, free, places, slots = ARGV.instance, tonumber(ARGV.free), tonumber(ARGV.places), tonumber(ARGV.slots)
-- What it was handed has come before anything that waits. Without any there is no write before `need_room`.
if ARGV.popped == '' and redis.call('EXISTS', HANDED .. instance) == 1 then
  return {{}, 1, redis.call('LPOP', HANDED .. instance, free)}
end

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

-- The type of all queues, and whether contexts wait in lines there.
local kind = type_of(ARGV[ARGV_NAMED + 1])
local lines = false

-- Whether jobs were set aside.
local has_aside = redis.call('EXISTS', ASIDE) == 1

-- An entry counts only in the queue that its job was sent to.
local function claim(key, queue)
  if not is_job_key(key) then return put_foreign(queue, key) end
  if lines then leave_line(key, queue) end
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
local waits = redis.call('EXISTS', unpack(ARGV, ARGV_NAMED + 1)) > 0
lines = (waits or ARGV.popped ~= '') and have_lines(kind)
-- Whether something waits that demands isolation, or is for our instances alone. Mostly nothing does, and a place has one queue.
local demanding = waits and #ARGV > ARGV_NAMED + places and redis.call('EXISTS', unpack(ARGV, ARGV_NAMED + places + 1)) > 0

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

-- Where contexts take turns, an entry stands for any job of its queue, and this one was popped already.
local popped = ARGV.popped ~= '' and ARGV.popped_from
local turns = lines and not are_open()
if popped and not (turns and is_job_key(ARGV.popped)) then
  need_room()
  popped = nil
  if demanding then
    -- Another one of its place may have come before it.
    hold_takers(kind)
    redis.call('LPUSH', ARGV.popped_from, ARGV.popped)
  else
    claim(ARGV.popped, ARGV.popped_from)
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

-- The queue from which a context's next job comes: among those of the first place where it waits, the one whose head came first.
local function queue_of(context)
  local waiting = redis.call('SMISMEMBER', LINES .. kind .. ':' .. context, unpack(ARGV, ARGV_NAMED + 1))
  for place = 1, places do
    local first, queue, key = nil, nil, nil
    for at = place, #waiting, places do
      local head = waiting[at] == 1 and redis.call('ZRANGE', LINE .. context .. ':' .. ARGV[ARGV_NAMED + at], 0, 0, 'WITHSCORES') or {}
      local seq = tonumber(head[2])
      if seq and (not first or seq < first) then first, queue, key = seq, ARGV[ARGV_NAMED + at], head[1] end
    end
    if queue then return queue, key end
  end
end

-- The context that has had the fewest turns of those that wait for this instance, and its next job. Who waits nowhere any more is
-- forgotten.
local function next_context()
  local from = 0
  while from < 500 do
    local found = redis.call('ZRANGE', TURNS .. kind, from, from, 'WITHSCORES')
    local context = found[1]
    if not context then return end
    local queue, key = queue_of(context)
    if queue then return context, tonumber(found[2]), queue, key end
    if redis.call('EXISTS', LINES .. kind .. ':' .. context) == 1 then
      from = from + 1
    else
      redis.call('ZREM', TURNS .. kind, context)
    end
  end
end

-- Takes an entry for a job out of its queue.
local function draw(queue)
  if popped == queue then
    popped = nil
    return
  end
  local entry
  repeat
    entry = redis.call('LPOP', queue)
    local is_job = not entry or is_job_key(entry)
    if not is_job then put_foreign(queue, entry) end
  until is_job
end

-- Takes by turns: one counts less the more its context weighs. None are saved up by who waits for other instances than this one.
local function take_by_turns()
  local last = tonumber(redis.call('HGET', ALONE, last_turn(kind)) or 0)
  local before = last
  while #taken < free and looks < 1000 do
    looks = looks + 1
    local context, turn, queue, key = next_context()
    if not context then break end
    need_room()
    local weight = tonumber(redis.call('HGET', BINDING .. context, 'weight') or 1)
    last = math.max(turn, last)
    redis.call('ZADD', TURNS .. kind, string.format('%.17g', last + 1 / weight), context)
    draw(queue)
    claim(key, queue)
  end
  if redis.call('EXISTS', TURNS .. kind) == 0 then
    redis.call('HDEL', ALONE, kind, last_turn(kind))
  elseif last ~= before then
    redis.call('HSET', ALONE, last_turn(kind), string.format('%.17g', last))
  end
end

if turns then
  for i = ARGV_NAMED + 1, #ARGV do take_aside(ARGV[i]) end
  take_by_turns()
  if popped and #taken == 0 then
    claim(ARGV.popped, popped)
  elseif popped and redis.call('ZSCORE', UNCLAIMED .. popped, ARGV.popped) then
    -- The entry wakes another instance.
    hold_takers(kind)
    redis.call('LPUSH', popped, ARGV.popped)
  end
end

for i = ARGV_NAMED + 1, (waits or has_aside) and ARGV_NAMED + places or 0 do
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
local function is_empty()
  return #taken < free and looks < 1000 and not has_aside
end
-- Where others pop as well, they would find nothing if ours were handed what comes.
if is_empty() and not are_open() then
  -- What is handed goes past the turns: nothing is left of those that are over. Without room for what a job makes nothing is taken, nor
  -- handed.
  if not lines and have_lines(kind) and is_roomy() then
    lines = true
    take_by_turns()
  end
  if is_empty() and redis.pcall('HSETNX', TAKERS .. kind, instance, most .. ' ' .. demands) == 1 then
    -- Whoever was taken for lost, and was not, is looked for again.
    redis.call('SADD', INSTANCES, instance)
  end
end
return {taken, is_empty() and 0 or 1, {}}
