-- Looks after the jobs that were put into an old queue: finds those that old workers have taken, have
-- ended, or will not end any more. A part of them at a time.
-- KEYS = old_queue
-- ARGV = kept count patience_secs reason result_bytes_max output_bytes_max answer_bytes
--
-- `kept` is the number of taken jobs that earlier parts kept, `count` the number to look at. A job is lost `patience_secs`
-- after its timeout, with `reason`, which is JSON. A part ends after `answer_bytes` of results and output.
-- Returns how many were noticed as taken, looked at, kept and lost, then each job that has ended.
local old, count = KEYS.old_queue, tonumber(ARGV.count)
local waiting, worker = OLD_WAITING .. old, old_worker(old)
local claims = CLAIMS .. worker

-- Finds the sequence number of our first entry from one end of the queue. Others may have pushed entries of their own.
local function edge(from, to, step)
  local entries = redis.pcall('LRANGE', old, from, to)
  if entries.err then return nil end
  for i = step > 0 and 1 or #entries, step > 0 and #entries or 1, step do
    local place = old_place(old, entries[i])
    if place then return place end
  end
  return nil, #entries
end

-- Returns our jobs that old workers took: they take from either end, so jobs beyond our first and last entry are taken.
local function taken()
  local first, foreign = edge(0, 999, 1)
  if first then
    local keys = redis.call('ZRANGEBYSCORE', waiting, '-inf', '(' .. first, 'LIMIT', 0, count)
    local last = edge(-1000, -1, -1)
    if last then
      for _, key in ipairs(redis.call('ZREVRANGEBYSCORE', waiting, '+inf', '(' .. last, 'LIMIT', 0, count)) do
        keys[#keys + 1] = key
      end
    end
    return keys
  end
  local keys = redis.call('ZRANGE', waiting, 0, count - 1)
  if foreign == 0 then return keys end
  -- Behind that many foreign entries none of ours is visible, but a worker that took one may have written so.
  local begun = {}
  for _, key in ipairs(keys) do
    local entry = old_entry(key, old, redis.call('ZSCORE', waiting, key))
    if redis.call('HGET', entry == key and JOB .. key or entry, 'status') ~= 'dispatched' then
      begun[#begun + 1] = key
    end
  end
  return begun
end

local noticed, kept, lost, looked, bytes = 0, 0, 0, 0, 0
for _, key in ipairs(taken()) do
  local known = redis.call('HMGET', JOB .. key, 'state', 'queue', 'seq', 'legacy')
  if known[1] == 'queued' and known[4] == old then
    hand_over(key, known[2], old, known[3])
    noticed = noticed + 1
  else
    redis.call('ZREM', waiting, key)
  end
end

local answer = {0, 0, 0, 0}
local time = tonumber(now())
local first = tonumber(ARGV.kept)
for _, key in ipairs(redis.call('ZRANGE', claims, first, first + count - 1)) do
  if bytes >= tonumber(ARGV.answer_bytes) then break end
  looked = looked + 1
  local job = JOB .. key
  local known = redis.call('HMGET', job, 'state', 'claimed_by', 'seq', 'started_at', 'timeout', 'log_offset', 'seen')
  local entry = old_entry(key, old, known[3] or '0')
  local theirs = entry == key and job or entry
  local said = redis.pcall('HMGET', theirs, 'status', 'output', 'result', 'error')
  if said.err then said = {} end
  local over = said[1] == 'finished' or said[1] == 'error'
  local silent = (said[2] or '') == '' and (said[3] or '') == '' and (said[4] or '') == ''
  if known[1] ~= 'started' or known[2] ~= worker then
    redis.call('ZREM', claims, key)
  elseif over and silent and not known[7] then
    -- Looks at the job once more: its worker may be about to write the outcome.
    redis.call('HSET', job, 'seen', 1)
    kept = kept + 1
  elseif over then
    local output, result = said[2] or '', said[3] or ''
    local size, length = #result, #output
    if size > tonumber(ARGV.result_bytes_max) then result = '' end
    output = string.sub(output, -ARGV.output_bytes_max)
    bytes = bytes + #output + #result
    answer[#answer + 1] = {key, said[1], known[4], output, length, result, size, string.sub(said[4] or '', 1, 4096)}
  elseif tonumber(known[5]) > 0 and time > tonumber(known[4]) + known[5] + ARGV.patience_secs then
    redis.call('ZREM', claims, key)
    redis.call('HSET', job, 'error', string.sub(ARGV.reason, 2, -2))
    end_job(key, 'lost', ended_event('lost', ARGV.reason, worker, known[4], known[6]))
    lost = lost + 1
  else
    kept = kept + 1
  end
end
if redis.call('EXISTS', waiting, claims) == 0 then redis.call('SREM', OLD_QUEUES, old) end
answer[1], answer[2], answer[3], answer[4] = noticed, looked, kept, lost
return answer
