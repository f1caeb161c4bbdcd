-- Gives waiting jobs to an instance.
-- ARGV = instance free popped popped_from places slots
--
-- `free` is the number of its `slots` that are free. `popped` is a job key that a blocking pop returned, '' for none, and
-- `popped_from` its queue. `places` is the number of the instance's open queues, which demand nothing and are not for our instances
-- alone. After the arguments follow these in order, then those of each level in the same order; last the ends of their names, each
-- between commas. Returns the taken jobs; 1 if more may be there, since later jobs are left to a blocking pop or handed
-- to the instance; and the jobs that it was handed.
local demands = table.remove(ARGV)
local instance, free, places, slots = ARGV.instance, tonumber(ARGV.free), tonumber(ARGV.places), tonumber(ARGV.slots)
-- Returns handed jobs first: they came before anything that waits. Without any, nothing is written before `need_room`.
if ARGV.popped == '' and redis.call('EXISTS', HANDED .. instance) == 1 then
  return {{}, 1, redis.call('LPOP', HANDED .. instance, free)}
end

local taken = {}
-- Aborts this script when Redis has no room for a new job: at `maxmemory` Redis refuses this write, which changes nothing,
-- before anything is taken from a queue.
local has_room = false
local function need_room()
  if not has_room then redis.call('LPUSHX', NOTHING, '') end
  has_room = true
end

-- Seconds for which a caller counts as present after its last job was sent here.
local PRESENT_SECS = 600
-- Most slots of one owner. With several owners the last slots are for those with fewer, so none has to wait for others' long jobs.
local most = slots > 1 and slots - math.max(1, math.floor(slots / 4)) or slots
local running, held = redis.call('ZCARD', CLAIMS .. instance), nil

-- Counts the slots of each owner; nothing when there is only one owner.
local function slots_of_all()
  if redis.call('ZCOUNT', CALLERS, now() - PRESENT_SECS, '+inf') < 2 then return false end
  local all = {}
  for _, key in ipairs(redis.call('ZRANGE', CLAIMS .. instance, 0, -1)) do
    local owner = owner_of(unpack(redis.call('HMGET', JOB .. key, 'coordinator', 'caller'), 1, 2))
    all[owner] = (all[owner] or 0) + 1
  end
  return all
end

-- Returns true if an owner has as many slots as one may have. Mostly there are slots enough, and no owner is counted.
local function has_most(owner)
  if running < most then return false end
  if held == nil then held = slots_of_all() end
  return held and (held[owner] or 0) >= most
end

-- The type of all queues, and true if contexts wait in lines there.
local kind = type_of(ARGV[ARGV_NAMED + 1])
local lines = false

-- True if jobs were set aside.
local has_aside = redis.call('EXISTS', ASIDE) == 1

-- Claims the job of an entry. An entry counts only in the queue that its job was sent to.
local function claim(key, queue)
  if not is_job_key(key) then return put_foreign(queue, key) end
  if lines then leave_line(key, queue) end
  local job = JOB .. key
  local known = redis.call('HMGET', job, 'state', 'queue', 'seq', 'job', 'script', 'grants', 'legacy', 'old_hash',
    'coordinator', 'caller', 'context_id', 'flow_id', 'queued_at')
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
  tell_of(key, 'started', started_event(instance, time, known[13]), known[9], known[11], known[12])
  taken[#taken + 1] = {key, time, known[4], known[5], known[6]}
end

-- True if any queue has entries. Mostly nothing waits, and one look tells.
local waits = redis.call('EXISTS', unpack(ARGV, ARGV_NAMED + 1)) > 0
lines = (waits or ARGV.popped ~= '') and have_lines(kind)
-- True if jobs wait that demand isolation, or are for our instances alone. Mostly none do, and a place has one queue.
local demanding = waits and #ARGV > ARGV_NAMED + places and redis.call('EXISTS', unpack(ARGV, ARGV_NAMED + places + 1)) > 0

-- Returns the queue of a place with the oldest head; an entry that is of no use goes first.
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

-- Queue of the popped entry. Where contexts take turns, an entry stands for any job of its queue, and this one was popped already.
local popped = ARGV.popped ~= '' and ARGV.popped_from
local turns = lines and not are_open()
if popped and not (turns and is_job_key(ARGV.popped)) then
  need_room()
  popped = nil
  if demanding then
    -- Puts the entry back, since another queue of its place may have an older head.
    hold_takers(kind)
    redis.call('LPUSH', ARGV.popped_from, ARGV.popped)
  else
    claim(ARGV.popped, ARGV.popped_from)
  end
end
-- Limits how many entries are looked at: entries of stopped or otherwise claimed jobs are skipped, and
-- the server must not be held up.
local looks = 0

-- Owners with jobs that were set aside, by queue, if there are any.
local aside = {}
if has_aside then
  need_room()
  for _, place in ipairs(redis.call('SMEMBERS', ASIDE)) do
    local queue, owner = string.match(place, '^(%S+) (%S+)$')
    aside[queue] = aside[queue] or {}
    table.insert(aside[queue], owner)
  end
end

-- Takes jobs of a queue that were set aside, of owners that have room by now.
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

-- Returns the queue of a context's next job: among those of the first place where it waits, the one with the oldest head.
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

-- Returns the context with the fewest turns of those that wait for this instance, and its next job. A context that no longer waits
-- anywhere is forgotten.
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

-- Removes one entry for a job from a queue.
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

-- Takes jobs by turns: the more a context weighs, the less a turn counts. Contexts that wait for other instances save up none.
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
    -- The entry goes back to wake another instance.
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
-- Registers as a taker only where nobody else pops: other takers would find nothing if ours were handed the jobs.
if is_empty() and not are_open() then
  -- Ends turns that are over, because handed jobs bypass them: nothing may be left of them. Without room for a new job none is taken
  -- or handed.
  if not lines and have_lines(kind) and is_roomy() then
    lines = true
    take_by_turns()
  end
  if is_empty() and redis.pcall('HSETNX', TAKERS .. kind, instance, most .. ' ' .. demands) == 1 then
    -- Restores an instance that was wrongly taken for lost, so that it is looked for again.
    redis.call('SADD', INSTANCES, instance)
  end
end
return {taken, is_empty() and 0 or 1, {}}
