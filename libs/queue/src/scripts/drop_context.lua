-- Forgets jobs of a context, a part of them at a time; once there are none, its binding. Running jobs are told to
-- stop and forgotten when they have ended; old workers cannot be told.
-- KEYS = binding jobs
-- ARGV = coordinator kept count refuse_secs
--
-- `kept` is the number of jobs that earlier parts kept, `count` the number to look at. `refuse_secs` is how long late jobs are
-- refused.
use_reserve()
local bound = redis.call('HGET', KEYS.binding, 'coordinator')
if is_of_another(bound, ARGV.coordinator) then
  return redis.error_reply('CONTEXT_CLAIMED this context is bound to another coordinator')
end
redis.call('HSET', KEYS.binding, 'dropped_by', ARGV.coordinator)

local function forget(key, worker, seq)
  local job = JOB .. key
  local old = redis.call('HMGET', job, 'old_hash', 'old_id', 'ended_at')
  if old[1] and not old[3] then
    answer_old(old[1], old[2], 'error', '', '{}', 'its context was removed')
  end
  redis.call('DEL', job, REPLY .. key, STOP .. key)
  if is_old_worker(worker) then
    -- Lets the job expire, because the old worker may still write to it.
    redis.call('ZREM', CLAIMS .. worker, key)
    redis.call('HSET', job, 'dropped', 1)
    redis.call('EXPIRE', job, 86400)
    redis.call('EXPIRE', OLD_NUMBERED .. seq, 86400)
  end
  redis.call('ZREM', KEYS.jobs, key)
end

local function drop(key)
  if redis.call('HGET', JOB .. key, 'state') == 'queued' then take_out(key) end
  local known = redis.call('HMGET', JOB .. key, 'state', 'claimed_by', 'stop_requested', 'seq')
  if known[1] == 'started' and not is_old_worker(known[2]) then
    if known[3] ~= '0' then
      tell_to_stop(key, known[2], '0')
    end
    return 1
  end
  forget(key, known[2], known[4])
  return 0
end

local offset, count = tonumber(ARGV.kept), tonumber(ARGV.count)

-- Empties an old queue from its head: searching it for each job would cost their number squared. Returns false when
-- the first entry belongs to another context.
local emptied = {}
local function emptied_from_its_head(old)
  if emptied[old] == nil then
    emptied[old] = false
    for _, key in ipairs(redis.call('ZRANGE', OLD_WAITING .. old, 0, count - 1)) do
      if redis.call('ZSCORE', KEYS.jobs, key) then
        drop(key)
        emptied[old] = true
      end
    end
  end
  return emptied[old]
end

local keys = redis.call('ZRANGE', KEYS.jobs, offset, offset + count - 1)
local looked, kept = #keys, 0
for _, key in ipairs(keys) do
  local known = redis.call('HMGET', JOB .. key, 'state', 'legacy')
  if known[1] == 'queued' and known[2] and emptied_from_its_head(known[2]) then
    -- Counts the part as full: the job was dropped with its old queue, or will be in the next part.
    looked = count
  else
    kept = kept + drop(key)
  end
end
if offset + kept == 0 and looked < count then
  redis.call('DEL', KEYS.jobs)
  redis.call('HDEL', KEYS.binding, 'coordinator', 'since')
  if bound then unbind(bound, string.sub(KEYS.binding, #BINDING + 1)) end
  redis.call('EXPIRE', KEYS.binding, ARGV.refuse_secs)
end
return {looked, kept}
