-- Looks after a queue from which others may take: finds jobs that they took, and jobs that no taker has reported.
-- KEYS = queue
-- ARGV = count silence_secs
--
-- `count` is the number of jobs to look at. A job without a report for `silence_secs` is put back.
-- Returns how many were noticed as taken, and how many were put back.
local queue, unclaimed, count = KEYS.queue, UNCLAIMED .. KEYS.queue, tonumber(ARGV.count)

-- Returns the sequence number of our first entry from one end of the queue; without any nothing, and the number of foreign ones.
local function edge(from, to, step)
  local entries = redis.call('LRANGE', queue, from, to)
  for i = step > 0 and 1 or #entries, step > 0 and #entries or 1, step do
    local seq = redis.call('ZSCORE', unclaimed, entries[i])
    if seq then return seq end
  end
  return nil, #entries
end

-- Our entries are in order, and are taken at the ends.
local missing = {}
local function note(keys, side)
  for _, key in ipairs(keys) do missing[#missing + 1] = {key, side} end
end
local first, others = edge(0, 999, 1)
if first then
  note(redis.call('ZREVRANGEBYSCORE', unclaimed, '(' .. first, '-inf', 'LIMIT', 0, count), 'LPUSH')
  local last = edge(-1000, -1, -1)
  if last then note(redis.call('ZRANGEBYSCORE', unclaimed, '(' .. last, '+inf', 'LIMIT', 0, count), 'RPUSH') end
elseif others < 1000 then
  note(redis.call('ZREVRANGEBYSCORE', unclaimed, '+inf', '-inf', 'LIMIT', 0, count), 'LPUSH')
end

local time, taken, back = tonumber(now()), 0, 0
for _, of in ipairs(missing) do
  local key, side = of[1], of[2]
  local job = JOB .. key
  local known = redis.call('HMGET', job, 'state', 'status', 'seq', 'missing_since', 'aside')
  if known[1] == 'queued' and not known[5] then
    if known[2] ~= 'queued' then
      redis.call('SADD', OLD_QUEUES, queue)
      hand_over(key, queue, queue, known[3])
      taken = taken + 1
    elseif not known[4] then
      redis.call('HSET', job, 'missing_since', time)
    elseif time - known[4] >= tonumber(ARGV.silence_secs) then
      redis.call('HDEL', job, 'missing_since')
      hold_takers(type_of(queue))
      redis.call(side, queue, key)
      back = back + 1
    end
  end
end
return {taken, back}
