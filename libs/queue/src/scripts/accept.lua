-- Accepts a job into its queue.
-- KEYS = binding jobs queue
-- ARGV = key hash coordinator queue_max old_queue condition nonce nonce_end node weight
--
-- `binding` and `jobs` belong to the job's context, which has `weight` turns for one of another. `queue_max` is the maximum number
-- of waiting jobs. `old_queue` is the old queue that also offers the job to old workers, '' for none. `condition` is `known` when
-- the job is accepted only if it is known. `nonce` is the key that binds its signature to the job, '' for none; it is kept until
-- `nonce_end`, in milliseconds since 1970. `node` is the node of a bus through which its coordinator is heard, '' for none. After
-- the arguments follow fields of the job's hash.
local key, hash, coordinator, queue, old, node = ARGV.key, ARGV.hash, ARGV.coordinator, KEYS.queue, ARGV.old_queue, ARGV.node
local job = JOB .. key
local context = redis.call('HMGET', KEYS.binding, 'coordinator', 'dropped_by', 'weight')
local bound, weight = context[1], ARGV.weight
if redis.call('HEXISTS', SUCCESSORS, coordinator) == 1 then
  return redis.error_reply('ROOT_SUCCEEDED this coordinator has another root now')
end
if is_of_another(bound, coordinator) then
  return redis.error_reply('CONTEXT_CLAIMED this context is bound to another coordinator')
end
if context[2] and not is_of_another(context[2], coordinator) then
  return redis.error_reply('CONTEXT_DROPPED this context is deleted')
end
local known = redis.call('HMGET', job, 'hash', 'state')
if known[1] then
  if known[1] ~= hash then
    return redis.error_reply('KEY_CONFLICT this job key is known with other content')
  end
  -- Notes the node before anything is promised: later reports have to reach the coordinator.
  if node ~= '' then note_node(coordinator, node) end
  tell_again(key)
  return {0, known[2]}
end
if ARGV.condition == 'known' then
  return redis.error_reply('FORGOTTEN this job was forgotten just now')
end
if redis.call('EXISTS', STOP .. key) == 1 then
  return redis.error_reply('STOPPED this job was stopped before it arrived')
end
-- The nonce is not bound to the context: a later coordinator of the context must not use signatures made for the former one.
local nonce, owner = ARGV.nonce, string.match(key, '^%x+%-(%x+%-%d+)%-%d+$')
local first = nonce ~= '' and redis.call('GET', nonce)
if first and first ~= owner then
  return redis.error_reply('SIGNATURE_REFUSED another job was run with this signature: it was signed for one')
end
if nonce ~= '' then
  -- Checks the end again: fetching blobs may have taken long, and a nonce is not kept beyond its end.
  local t = read_clock()
  if t[1] * 1000 + math.floor(t[2] / 1000) >= tonumber(ARGV.nonce_end) then
    return redis.error_reply('SIGNATURE_REFUSED the signature of its actor is over')
  end
end
local of = {}
for i = ARGV_NAMED + 1, #ARGV - 1, 2 do of[ARGV[i]] = ARGV[i + 1] end
local is_short = #of.job + #of.script + #(of.grants or '') <= HANDED_BYTES_MAX
local taker = old == '' and is_short and find_taker(queue)
local length = taker and 0 or redis.call('ZCARD', UNCLAIMED .. queue)
if length >= tonumber(ARGV.queue_max) then
  return redis.error_reply('QUEUE_FULL the queue holds ' .. length .. ' jobs, its limit is ' .. ARGV.queue_max)
end
local time = now()
-- Runs first of all writes, because Redis refuses it at `maxmemory`: after another write Redis would let everything pass.
local seq = redis.call('INCR', SEQ)
if not bound then
  redis.call('HDEL', KEYS.binding, 'dropped_by')
  redis.call('HSET', KEYS.binding, 'coordinator', coordinator, 'since', time)
  redis.call('PERSIST', KEYS.binding)
  redis.call('SADD', CONTEXTS .. coordinator, string.sub(KEYS.binding, #BINDING + 1))
end
if (context[3] or '1') ~= weight then redis.call('HSET', KEYS.binding, 'weight', weight) end
if node ~= '' then note_node(coordinator, node) end
if nonce ~= '' and not first then
  redis.call('SET', nonce, owner, 'PXAT', ARGV.nonce_end)
end
-- An old worker may have left something here when the job had been forgotten.
redis.call('DEL', job)
local state = taker and 'started' or 'queued'
if taker then
  for _, part in ipairs({'claimed_by', taker, 'started_at', time, 'events', 1}) do ARGV[#ARGV + 1] = part end
end
redis.call('HSET', job, 'key', key, 'hash', hash, 'coordinator', coordinator, 'queue', queue, 'seq', seq,
  'state', state, 'status', state, 'queued_at', time, 'log_offset', 0, unpack(ARGV, ARGV_NAMED + 1))
-- Records the caller as present: with several callers present, none may have all slots.
redis.call('ZADD', CALLERS, time, owner_of(coordinator, of.caller))
redis.call('ZADD', KEYS.jobs, '+inf', key)
redis.call('SADD', QUEUES, queue)
if taker then
  redis.call('HINCRBY', STATS .. queue, 'taken', 1)
  tell_as(1, key, 'started', started_event(taker, time, time), coordinator, of.context_id, of.flow_id)
  hand(taker, key, seq, time, of.job, of.script, of.grants or '')
  return {1, state}
end
stand_in_line(key, queue, seq)
redis.call('ZADD', UNCLAIMED .. queue, seq, key)
redis.call('RPUSH', queue, key)
if old ~= '' then offer_to_old(key, old, seq) end
return {1, state}
