-- KEYS: 1 hero:uid:<uid>  2 hero:jobs:<uid>  3 <queue>
-- ARGV: 1 job key  2 content hash  3 coordinator  4 queue length limit  5 old queue, or nothing
--       6 `known` when it is taken only if it is known  7 what its signature belongs to, or nothing
--       8 until when that is remembered, in milliseconds since 1970
--       9 the node of a bus through which its coordinator is heard, or nothing
--       10 how many turns its context has for one of another  11… fields of the job's hash
local key, hash, coordinator, queue, old, node = ARGV[1], ARGV[2], ARGV[3], KEYS[3], ARGV[5], ARGV[9]
local job = JOB .. key
local context = redis.call('HMGET', KEYS[1], 'coordinator', 'dropped_by', 'weight')
local bound, weight = context[1], ARGV[10]
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
  -- Before anything is promised: its coordinator has to be told of it.
  if node ~= '' then note_node(coordinator, node) end
  tell_again(key)
  return {0, known[2]}
end
if ARGV[6] == 'known' then
  return redis.error_reply('FORGOTTEN this job was forgotten just now')
end
if redis.call('EXISTS', STOP .. key) == 1 then
  return redis.error_reply('STOPPED this job was stopped before it arrived')
end
-- Not the context's: whoever has it next must not use what was signed for whoever had it before.
local nonce, owner = ARGV[7], string.match(key, '^%x+%-(%x+%-%d+)%-%d+$')
local first = nonce ~= '' and redis.call('GET', nonce)
if first and first ~= owner then
  return redis.error_reply('SIGNATURE_REFUSED another job was run with this signature: it was signed for one')
end
if nonce ~= '' then
  -- Fetching what it needs may have taken long, and whose a signature was is not remembered beyond its end.
  local t = read_clock()
  if t[1] * 1000 + math.floor(t[2] / 1000) >= tonumber(ARGV[8]) then
    return redis.error_reply('SIGNATURE_REFUSED the signature of its actor is over')
  end
end
local of = {}
for i = 11, #ARGV - 1, 2 do of[ARGV[i]] = ARGV[i + 1] end
local is_short = #of.job + #of.script + #(of.grants or '') <= HANDED_BYTES_MAX
local taker = old == '' and is_short and find_taker(queue)
local length = taker and 0 or redis.call('ZCARD', UNCLAIMED .. queue)
if length >= tonumber(ARGV[4]) then
  return redis.error_reply('QUEUE_FULL the queue holds ' .. length .. ' jobs, its limit is ' .. ARGV[4])
end
local time = now()
-- Of all that is written, first what Redis refuses at `maxmemory`: after another write it would let all pass.
local seq = redis.call('INCR', SEQ)
if not bound then
  redis.call('HDEL', KEYS[1], 'dropped_by')
  redis.call('HSET', KEYS[1], 'coordinator', coordinator, 'since', time)
  redis.call('PERSIST', KEYS[1])
  redis.call('SADD', CONTEXTS .. coordinator, string.sub(KEYS[1], #BINDING + 1))
end
if (context[3] or '1') ~= weight then redis.call('HSET', KEYS[1], 'weight', weight) end
if node ~= '' then note_node(coordinator, node) end
if nonce ~= '' and not first then
  redis.call('SET', nonce, owner, 'PXAT', ARGV[8])
end
-- An old worker may have left something here when the job had been forgotten.
redis.call('DEL', job)
local state = taker and 'started' or 'queued'
if taker then
  for _, part in ipairs({'claimed_by', taker, 'started_at', time, 'events', 1}) do ARGV[#ARGV + 1] = part end
end
redis.call('HSET', job, 'key', key, 'hash', hash, 'coordinator', coordinator, 'queue', queue, 'seq', seq,
  'state', state, 'status', state, 'queued_at', time, 'log_offset', 0, unpack(ARGV, 11))
-- Who else is there decides whether anybody may have all slots.
redis.call('ZADD', CALLERS, time, owner_of(coordinator, of.caller))
redis.call('ZADD', KEYS[2], '+inf', key)
redis.call('SADD', QUEUES, queue)
if taker then
  redis.call('HINCRBY', STATS .. queue, 'taken', 1)
  tell_as(1, key, 'started', started_event(taker, time), coordinator, of.context_id, of.flow_id)
  hand(taker, key, seq, time, of.job, of.script, of.grants or '')
  return {1, state}
end
stand_in_line(key, queue, seq)
redis.call('ZADD', UNCLAIMED .. queue, seq, key)
redis.call('RPUSH', queue, key)
if old ~= '' then offer_to_old(key, old, seq) end
return {1, state}
