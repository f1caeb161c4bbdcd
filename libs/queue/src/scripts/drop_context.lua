-- Forgets jobs of a context, a part of them at a time; once there are none, its binding. What runs is told to
-- stop and forgotten when it has ended; old workers cannot be told.
-- KEYS: 1 hero:uid:<uid>  2 hero:jobs:<uid>
-- ARGV: 1 coordinator  2 how many are kept of the parts before  3 how many to look at  4 seconds to refuse late jobs
local bound = redis.call('HGET', KEYS[1], 'coordinator')
if bound and bound ~= ARGV[1] then
  return redis.error_reply('CONTEXT_CLAIMED this context is bound to another coordinator')
end
redis.call('HSET', KEYS[1], 'dropped_by', ARGV[1])

local function forget(key, worker, seq)
  local job = JOB .. key
  local old = redis.call('HMGET', job, 'old_hash', 'old_id', 'ended_at')
  if old[1] and not old[3] then
    answer_old(old[1], old[2], 'error', '', '{}', 'its context was removed')
  end
  redis.call('DEL', job, REPLY .. key, STOP .. key)
  if is_old_worker(worker) then
    -- What it may still write must not stay for ever.
    redis.call('ZREM', CLAIMS .. worker, key)
    redis.call('HSET', job, 'dropped', 1)
    redis.call('EXPIRE', job, 86400)
    redis.call('EXPIRE', OLD_NUMBERED .. seq, 86400)
  end
  redis.call('ZREM', KEYS[2], key)
end

local offset, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local keys = redis.call('ZRANGE', KEYS[2], offset, offset + count - 1)
local kept = 0
for _, key in ipairs(keys) do
  if redis.call('HGET', JOB .. key, 'state') == 'queued' then take_out(key) end
  local known = redis.call('HMGET', JOB .. key, 'state', 'claimed_by', 'stop_requested', 'seq')
  if known[1] == 'started' and not is_old_worker(known[2]) then
    kept = kept + 1
    if known[3] ~= '0' then
      tell_to_stop(key, known[2], '0')
    end
  else
    forget(key, known[2], known[4])
  end
end
if offset + kept == 0 and #keys < count then
  redis.call('DEL', KEYS[2])
  redis.call('HDEL', KEYS[1], 'coordinator', 'since')
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return {#keys, kept}
