-- Prelude of every script, behind the names of keys, which libs/keys writes as Lua: the clock, events. Names of fields are defined
-- here, and a test compares them with libs/keys.
-- A supervisor's Redis is never a cluster, so keys may be derived here.
-- A job's `state` is authoritative. `status` repeats it for other readers, and old workers write it.
local OPEN = 'open_queues'
local NODE = 'node:'
local OLD_WORKER = 'legacy:'

-- Lets the rest of this script write even when Redis is at `maxmemory`: for writes that free memory, end a job or keep alive what
-- exists. Redis refuses a script whose first write may take memory; this one takes none, and changes nothing.
local function use_reserve()
  redis.call('HDEL', SUPERVISOR, '')
end

-- A key that is never written.
local NOTHING = 'hero:nothing'

-- Returns true if Redis has room for a new job: at `maxmemory` it refuses this write, which changes nothing. Has to run before
-- the first write: afterwards Redis would let it pass.
local function is_roomy()
  return type(redis.pcall('LPUSHX', NOTHING, '')) == 'number'
end

-- The server's clock, as `TIME` gives it: it stands still while a script runs.
local clock
local function read_clock()
  clock = clock or redis.call('TIME')
  return clock
end

-- Unix seconds with three decimals, by the server's clock.
local function now()
  local t = read_clock()
  return string.format('%d.%03d', t[1], math.floor(t[2] / 1000))
end

-- Returns true if a root belongs to another coordinator. A successor root is the same coordinator.
local function is_of_another(root, coordinator)
  return root and root ~= coordinator and redis.call('HGET', SUCCESSORS, root) ~= coordinator
end

-- Records the node of a bus through which a coordinator was heard. A coordinator heard through it before is no longer there.
local function note_node(coordinator, node)
  local field = NODE .. coordinator
  if redis.call('HGET', SUPERVISOR, field) == node then return end
  local known = redis.call('HGETALL', SUPERVISOR)
  for i = 1, #known, 2 do
    if known[i + 1] == node and string.sub(known[i], 1, #NODE) == NODE then
      redis.call('HDEL', SUPERVISOR, known[i])
    end
  end
  redis.call('HSET', SUPERVISOR, field, node)
end

-- Unbinds a context from a coordinator, and removes the node of a coordinator without any context.
local function unbind(coordinator, context)
  redis.call('SREM', CONTEXTS .. coordinator, context)
  if redis.call('EXISTS', CONTEXTS .. coordinator) == 0 then
    redis.call('HDEL', SUPERVISOR, NODE .. coordinator)
  end
end

-- Returns true if an entry may be a job key of ours. Anybody can push anything.
local function is_job_key(text)
  return #text < 100 and string.match(text, '^%x+%-%x+%-%d+%-%d+$') ~= nil
end

-- Returns true if the supervisor has opened its queues to others.
local function are_open()
  return redis.call('HEXISTS', SUPERVISOR, OPEN) == 1
end

-- Returns true if others may take from a queue: all queues are open together, except those whose names they do not know.
local function is_open(queue)
  return not string.find(queue, ':iso:', 1, true) and not string.find(queue, ':closed', 1, true)
    and are_open()
end

-- Maximum number of foreign entries that wait for the supervisor, and how many bytes of an entry are kept.
local FOREIGN_MAX, FOREIGN_BYTES_MAX = 10000, 1024

-- Extracts the id of a foreign job from an entry of a work queue; nothing if the entry names none.
local function foreign_id(entry)
  local id = string.match(entry, '^hero:job:(.*)$') or entry
  return #id <= 128 and string.match(id, '^[%w_.@-]+$') and not is_job_key(id) and id
end

-- Appends event number `n` of a job to the stream that the supervisor reads.
local function tell_as(n, key, kind, data, coordinator, context_id, flow_id)
  redis.call('XADD', DONE, '*', 'kind', kind, 'key', key, 'n', n,
    'coordinator', coordinator, 'context_id', context_id, 'flow_id', flow_id, 'data', data)
end

-- Appends an event of a job. A job from an old queue has no coordinator, so its events are dropped.
local function tell_of(key, kind, data, coordinator, context_id, flow_id)
  if coordinator == '' then return end
  tell_as(redis.call('HINCRBY', JOB .. key, 'events', 1), key, kind, data, coordinator, context_id, flow_id)
end

-- Appends an event of a job after reading which coordinator, context and flow it belongs to.
local function tell(key, kind, data)
  tell_of(key, kind, data, unpack(redis.call('HMGET', JOB .. key, 'coordinator', 'context_id', 'flow_id'), 1, 3))
end

-- Returns the owner whose share of the slots a job counts for: an actor of a coordinator.
local function owner_of(coordinator, caller)
  return (coordinator or '') .. '/' .. (caller or '')
end

-- Extracts the script type from a queue's name, and the context from a job's key.
local function type_of(queue)
  return string.match(queue, '^hero:q:work:type:([^:]+)')
end
local function context_of(key)
  return string.match(key, '^%x+')
end

-- Returns true if another life has replaced this life of an instance.
local function is_replaced(presence, life)
  local present = redis.call('GET', presence)
  if not present then return false end
  local known, of = pcall(function() return cjson.decode(present).life end)
  return not known or of ~= life
end

-- Stops handing jobs to instances of a type, because something waits that they may take.
local function hold_takers(kind)
  redis.call('DEL', TAKERS .. kind)
end

-- Stops handing jobs to an instance.
local function take_nothing(instance)
  redis.call('HDEL', TAKERS .. (string.match(instance, '^[^:]+') or ''), instance)
end

-- Sets a job aside whose owner has as many of an instance's slots as one may have: it is out of the way of others until the
-- owner has room.
local function set_aside(key, queue, owner, seq)
  hold_takers(type_of(queue))
  redis.call('HSET', JOB .. key, 'aside', 1)
  redis.call('SADD', ASIDE, queue .. ' ' .. owner)
  redis.call('ZADD', ASIDE_OF .. queue .. ' ' .. owner, seq, key)
end

-- Removes and returns the first job that was set aside for an owner in a queue.
local function next_aside(queue, owner)
  local place = queue .. ' ' .. owner
  local key = redis.call('ZPOPMIN', ASIDE_OF .. place)[1]
  if not key then redis.call('SREM', ASIDE, place) end
  return key
end

-- Offers one job that was set aside for an owner in each queue, since the owner has room again.
local function offer_aside(owner)
  if redis.call('EXISTS', ASIDE) == 0 then return end
  for _, place in ipairs(redis.call('SMEMBERS', ASIDE)) do
    local queue, whose = string.match(place, '^(%S+) (%S+)$')
    -- Keeps the job set aside as well: an instance that looks there first takes it from there, in its order.
    local key = whose == owner and redis.call('ZRANGE', ASIDE_OF .. place, 0, 0)[1]
    if key then
      hold_takers(type_of(queue))
      redis.call('LPUSH', queue, key)
    end
  end
end

-- Contexts whose expired ends this script has removed.
local trimmed = {}

-- Keeps how a job ended for a while, and drops the fields that were only needed to run it.
local function keep_end(key, context, secs)
  local job = JOB .. key
  redis.call('HDEL', job, 'job', 'script', 'env_vars', 'grants', 'again')
  redis.call('EXPIRE', job, secs)
  local time = tonumber(read_clock()[1])
  local jobs = JOBS .. context
  redis.call('ZADD', jobs, time + secs, key)
  if not trimmed[context] then redis.call('ZREMRANGEBYSCORE', jobs, '-inf', time) end
  trimmed[context] = true
end

-- Forgets an ended job. If the same attempt arrives late, it is refused for a while.
local function forget_end(key, context, secs)
  redis.call('DEL', JOB .. key, REPLY .. key)
  redis.call('ZREM', JOBS .. context, key)
  redis.call('SET', STOP .. key, '0', 'EX', secs)
end

-- Answers a job of an old dispatcher as an old worker would.
local function answer_old(old, id, status, output, result, error)
  local word, reply = 'error', error
  if status == 'finished' then
    word, reply = 'finished', result
    if result == '' or result == '{}' then reply = output end
  elseif reply == '' then
    reply = status
  end
  -- Skips the hash if its dispatcher has removed it.
  if redis.call('EXISTS', old) == 1 then
    redis.pcall('HSET', old, 'status', word, 'output', output, 'result', result, 'error', error,
      'updated_at', read_clock()[1])
  end
  for _, list in ipairs({REPLY .. id, 'hero:reply:' .. id}) do
    redis.pcall('RPUSH', list, reply)
    redis.pcall('EXPIRE', list, 3600)
  end
end

-- Passes a foreign entry of a work queue to the supervisor, which decides about it. If too many wait, the
-- dispatcher is answered at once.
local function put_foreign(queue, entry)
  if redis.call('LLEN', FOREIGN) < FOREIGN_MAX then
    redis.call('RPUSH', FOREIGN, queue .. ' ' .. string.sub(entry, 1, FOREIGN_BYTES_MAX))
    return
  end
  local id = foreign_id(entry)
  if id then answer_old(JOB .. id, id, 'error', '', '{}', 'QUEUE_FULL: too much of others waits here') end
end

-- Fields that `end_job` needs of a job.
local TO_END = {'coordinator', 'context_id', 'flow_id', 'caller', 'legacy', 'seq', 'old_hash'}

-- Ends a job: writes the record with further fields, the event, the reply, and the answer to an old dispatcher. `data` is the event,
-- `o` the values of TO_END, unless they have to be read.
local function end_job(key, status, data, o, ...)
  local job = JOB .. key
  o = o or redis.call('HMGET', job, unpack(TO_END))
  redis.call('HSET', job, 'state', status, 'status', status, 'ended_at', now(), 'end', data, ...)
  tell_of(key, 'ended', data, o[1], o[2], o[3])
  redis.call('RPUSH', REPLY .. key, data)
  redis.call('EXPIRE', REPLY .. key, 3600)
  offer_aside(owner_of(o[1], o[4]))
  if o[5] then
    -- Kept for a while, so that what an old worker may still write expires with it.
    redis.call('EXPIRE', OLD_NUMBERED .. o[6], 86400)
  end
  if o[7] then
    local old = redis.call('HMGET', job, 'old_id', 'output', 'result', 'error', 'context')
    answer_old(o[7], old[1], status, old[2] or '', old[3] or '{}', old[4] or '')
    keep_end(key, old[5], 3600)
  end
end

-- Marker in `ALONE` for a type at which contexts take turns; otherwise the field names the only context that waits.
local IN_TURNS = '*'

-- Returns the name of the field with the last turn at the instances of a type.
local function last_turn(kind)
  return kind .. ':turn'
end

-- Returns true if jobs of several contexts wait for instances of a type, each job in the line of its context.
local function have_lines(kind)
  return redis.call('HGET', ALONE, kind) == IN_TURNS
end

-- Returns true if contexts take turns at the instances of a type. Never in open queues: the order of entries tells what others took.
local function take_turns(kind)
  return have_lines(kind) and not are_open()
end

-- Removes a job from the line of its context.
local function leave_line(key, queue)
  local context = context_of(key)
  local line = LINE .. context .. ':' .. queue
  if redis.call('ZREM', line, key) == 1 and redis.call('EXISTS', line) == 0 then
    redis.call('SREM', LINES .. type_of(queue) .. ':' .. context, queue)
  end
end

-- Rebuilds a queue's list from all waiting jobs, in their order: while contexts take turns, an entry stands for any of them.
local function list_all(queue)
  for _, entry in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    if not is_job_key(entry) then put_foreign(queue, entry) end
  end
  redis.call('DEL', queue)
  hold_takers(type_of(queue))
  local from, page = 0, nil
  repeat
    page = redis.call('ZRANGE', UNCLAIMED .. queue, from, from + 999)
    if #page > 0 then redis.call('RPUSH', queue, unpack(page)) end
    from = from + #page
  until #page < 1000
end

-- Rebuilds a queue's list from its entries that still wait.
local function sweep(queue)
  if take_turns(type_of(queue)) then return list_all(queue) end
  local entries = redis.call('LRANGE', queue, 0, -1)
  redis.call('DEL', queue)
  for from = 1, #entries, 1000 do
    local last = math.min(from + 999, #entries)
    local seqs = redis.call('ZMSCORE', UNCLAIMED .. queue, unpack(entries, from, last))
    local kept = {}
    for i = from, last do
      if seqs[i - from + 1] then
        kept[#kept + 1] = entries[i]
      elseif not is_job_key(entries[i]) then
        put_foreign(queue, entries[i])
      end
    end
    if #kept > 0 then redis.call('RPUSH', queue, unpack(kept)) end
  end
end

-- Takes a waiting job out of its queue. Its entry stays in the list, and the instance that comes to it skips
-- it: searching for each of many would cost their number squared. When such entries are most of the
-- list, or all of it, the list is rebuilt.
local function unqueue(key, queue)
  redis.call('ZREM', UNCLAIMED .. queue, key)
  if have_lines(type_of(queue)) then leave_line(key, queue) end
  local waiting = redis.call('ZCARD', UNCLAIMED .. queue)
  if waiting == 0 or redis.call('LLEN', queue) > 2 * waiting + 1000 then sweep(queue) end
end

-- Tells a running job's instance to stop it.
local function tell_to_stop(key, instance, grace)
  redis.call('HSET', JOB .. key, 'stop_requested', grace)
  local kind, group, n = string.match(instance, '^([^:]+):([^:]+):([^:]+)$')
  local control = 'hero:q:ctl:type:' .. kind .. ':group:' .. group .. ':inst:' .. n
  redis.call('RPUSH', control, '{"command":"stop","job_key":"' .. key .. '","grace_secs":' .. grace .. '}')
  -- Expires the message, since no instance may be left to read it.
  redis.call('EXPIRE', control, 86400)
end

-- Returns the event of a job's start. `queued_at` is when the job was accepted, absent where its start is told again.
local function started_event(instance, time, queued_at)
  local queued = queued_at and ',"queued_time":' .. queued_at or ''
  return '{"kind":"started","instance":"' .. instance .. '","time":' .. time .. queued .. '}'
end

-- Returns the event of a job's end that its worker did not report.
local function ended_event(outcome, reason, worker, started_at, log_offset)
  return '{"kind":"ended","outcome":"' .. outcome .. '","reason":' .. reason .. ',"instance":"' .. worker
    .. '","output_bytes":' .. log_offset .. ',"start_time":' .. started_at .. ',"end_time":' .. now() .. '}'
end

-- Returns the name under which an old worker stands in a job, and true if a name is one.
local function old_worker(old)
  return OLD_WORKER .. old
end
local function is_old_worker(name)
  return name and string.sub(name, 1, #OLD_WORKER) == OLD_WORKER
end

-- Returns the entry of a job in an old queue.
local function old_entry(key, old, seq)
  if string.sub(old, 1, 6) == 'queue:' then return OLD_NUMBERED .. seq end
  return key
end

-- Returns the sequence number of an entry of an old queue; nothing for a foreign entry.
local function old_place(old, entry)
  if string.sub(old, 1, 6) == 'queue:' then
    return tonumber(string.match(entry, '^' .. OLD_NUMBERED .. '(%d+)$'))
  end
  return tonumber(redis.call('ZSCORE', OLD_WAITING .. old, entry))
end

-- Takes an entry out of the middle of an old queue, or finds that it is not there. Our entries are in order, so
-- head and tail mostly tell if it is there, and which end is nearer.
local function remove_from(old, key, entry, seq, head)
  local tail = redis.call('LINDEX', old, -1)
  local first, last = old_place(old, head), old_place(old, tail)
  if first and first > seq or last and last < seq then return false end
  local waiting = OLD_WAITING .. old
  local rank = redis.call('ZRANK', waiting, key)
  local count = rank and 2 * rank > redis.call('ZCARD', waiting) and -1 or 1
  return redis.call('LREM', old, count, entry) > 0
end

-- Takes a job's entry out of its old queue, where old workers would come to it. Returns false if one of them has it.
local function withdraw(key, old, seq)
  local entry = old_entry(key, old, seq)
  local head = redis.pcall('LINDEX', old, 0)
  local there
  if type(head) == 'table' then
    -- Not a list any more, so no worker pops from it.
    there = true
  elseif head == entry then
    redis.call('LPOP', old)
    there = true
  elseif not head then
    there = false
  else
    there = remove_from(old, key, entry, tonumber(seq), head)
  end
  if there then
    redis.call('ZREM', OLD_WAITING .. old, key)
    redis.call('DEL', OLD_NUMBERED .. seq)
  end
  return there
end

-- Offers a waiting job to old workers too.
local function offer_to_old(key, old, seq)
  local kind = redis.call('TYPE', old).ok
  if kind ~= 'list' and kind ~= 'none' then return end
  local job = JOB .. key
  -- Writes `dispatched`, which old readers expect of a job that waits in a queue.
  redis.call('HSET', job, 'legacy', old, 'status', 'dispatched')
  local entry = old_entry(key, old, seq)
  if entry ~= key then
    local time = read_clock()[1]
    local j = redis.call('HMGET', job, 'script', 'script_type', 'env_vars', 'timeout', 'context_id')
    redis.call('HSET', entry, 'id', seq, 'caller_id', 0, 'context_id', j[5], 'script', j[1], 'script_type', j[2],
      'env_vars', j[3], 'timeout', j[4], 'retries', 0, 'prerequisites', '[]', 'depends', '[]',
      'created_at', time, 'updated_at', time, 'status', 'dispatched')
  end
  redis.call('SADD', OLD_QUEUES, old)
  redis.call('ZADD', OLD_WAITING .. old, seq, key)
  redis.call('RPUSH', old, entry)
end

-- Marks a job that an old worker has taken as started by it.
local function hand_over(key, queue, old, seq)
  local worker, time = old_worker(old), now()
  redis.call('ZREM', OLD_WAITING .. old, key)
  redis.call('ZADD', CLAIMS .. worker, seq, key)
  redis.call('HINCRBY', STATS .. queue, 'taken', 1)
  redis.call('HSET', JOB .. key, 'state', 'started', 'claimed_by', worker, 'started_at', time)
  tell(key, 'started', started_event(worker, time))
  unqueue(key, queue)
end

-- Takes a waiting job out of its queues. Returns false if an old worker has it: the job counts as started now.
local function take_out(key)
  local known = redis.call('HMGET', JOB .. key, 'queue', 'legacy', 'seq')
  if known[2] and not withdraw(key, known[2], known[3]) then
    hand_over(key, known[1], known[2], known[3])
    return false
  end
  unqueue(key, known[1])
  return true
end

-- Repeats the state of a job as an event: its coordinator asks for something that it should know, so it may have lost
-- what it has acknowledged. An end without an acknowledgement is being resent anyway.
local function tell_again(key)
  local job = JOB .. key
  local known = redis.call('HMGET', job, 'state', 'claimed_by', 'started_at', 'end', 'job', 'again')
  if known[1] == 'started' then
    tell(key, 'started', started_event(known[2], known[3]))
  elseif known[1] and not known[5] and not known[6] then
    redis.call('HSET', job, 'again', 1)
    if known[4] then
      tell(key, 'ended', known[4])
    elseif known[1] == 'returned' then
      tell(key, 'returned', '{"kind":"returned"}')
    end
  end
end
