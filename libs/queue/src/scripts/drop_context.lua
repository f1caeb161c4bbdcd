-- Forgets jobs of a context, a part of them at a time; once there are none, its binding. What runs is told to
-- stop and forgotten when it has ended.
-- KEYS: 1 hero:uid:<uid>  2 hero:jobs:<uid>
-- ARGV: 1 coordinator  2 how many are kept of the parts before  3 how many to look at  4 seconds to refuse late jobs
local bound = redis.call('HGET', KEYS[1], 'coordinator')
if bound and bound ~= ARGV[1] then
  return redis.error_reply('CONTEXT_CLAIMED this context is bound to another coordinator')
end
redis.call('HSET', KEYS[1], 'dropped_by', ARGV[1])
local offset, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local keys = redis.call('ZRANGE', KEYS[2], offset, offset + count - 1)
local kept = 0
for _, key in ipairs(keys) do
  local known = redis.call('HMGET', JOB .. key, 'status', 'queue', 'claimed_by', 'stop_requested')
  if known[1] == 'started' then
    kept = kept + 1
    if known[4] ~= '0' then
      tell_to_stop(key, known[3], '0')
    end
  else
    if known[1] == 'queued' then
      unqueue(key, known[2])
    end
    redis.call('DEL', JOB .. key, REPLY .. key, STOP .. key)
    redis.call('ZREM', KEYS[2], key)
  end
end
if offset + kept == 0 and #keys < count then
  redis.call('DEL', KEYS[2])
  redis.call('HDEL', KEYS[1], 'coordinator', 'since')
  redis.call('EXPIRE', KEYS[1], ARGV[4])
end
return {#keys, kept}
