-- Puts back jobs that were popped and never claimed. A queue is ordered by sequence number, so a job that
-- is missing from it has a lower number than its first entry. A pop whose claim is still on its way may
-- be put back as well; the second claim then finds the job claimed.
-- KEYS = queue
-- ARGV = count
--
-- `count` is the maximum number.
-- Returns the number of jobs, or -1 when the script has to be called again because it only came to stale entries.
use_reserve()
local queue, unclaimed = KEYS.queue, UNCLAIMED .. KEYS.queue
-- Leaves open queues alone, since other takers may have the missing jobs; `sweep_open` looks after those.
if is_open(queue) then return 0 end
local kind = type_of(queue)
if take_turns(kind) then
  -- An entry stands for any job while contexts take turns, so only the number of entries counts.
  local missing = -redis.call('LLEN', queue)
  for _, context in ipairs(redis.call('ZRANGE', TURNS .. kind, 0, -1)) do
    missing = missing + redis.call('ZCARD', LINE .. context .. ':' .. queue)
  end
  if missing <= 0 then return 0 end
  list_all(queue)
  return missing
end
local before
for _ = 1, 1000 do
  local head = redis.call('LINDEX', queue, 0)
  if not head then
    before = '+inf'
    break
  end
  local seq = redis.call('ZSCORE', unclaimed, head)
  if seq then
    before = '(' .. seq
    break
  end
  redis.call('LPOP', queue)
  if not is_job_key(head) then put_foreign(queue, head) end
end
if not before then return -1 end
-- Jobs that were set aside wait for their owner, and are not lost.
local are_aside = redis.call('EXISTS', ASIDE) == 1
local missing, from, page = {}, 0, nil
repeat
  page = redis.call('ZREVRANGEBYSCORE', unclaimed, before, '-inf', 'LIMIT', from, ARGV.count)
  for _, key in ipairs(page) do
    if not are_aside or redis.call('HEXISTS', JOB .. key, 'aside') == 0 then missing[#missing + 1] = key end
  end
  from = from + #page
until #missing > 0 or not are_aside or #page < tonumber(ARGV.count) or from >= 10000
if #missing > 0 then hold_takers(kind) end
for _, key in ipairs(missing) do
  redis.call('LPUSH', queue, key)
end
return #missing
