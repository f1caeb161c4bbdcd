-- Forgets some jobs of a context; once there are none, its binding.
-- KEYS: 1 hero:uid:<uid>  2 hero:jobs:<uid>   ARGV: 1 coordinator  2 how many
local bound = redis.call('HGET', KEYS[1], 'coordinator')
if bound and bound ~= ARGV[1] then
  return redis.error_reply('CONTEXT_CLAIMED this context is bound to another coordinator')
end
local keys = redis.call('ZRANGE', KEYS[2], 0, ARGV[2] - 1)
for _, key in ipairs(keys) do
  local known = redis.call('HMGET', JOB .. key, 'status', 'queue', 'claimed_by')
  if known[1] == 'queued' then
    unqueue(key, known[2])
  elseif known[1] == 'started' then
    redis.call('ZREM', CLAIMS .. known[3], key)
    local kind, group, n = string.match(known[3], '^([^:]+):([^:]+):([^:]+)$')
    local control = 'hero:q:ctl:type:' .. kind .. ':group:' .. group .. ':inst:' .. n
    redis.call('RPUSH', control, '{"command":"stop","job_key":"' .. key .. '","grace_secs":0}')
    redis.call('EXPIRE', control, 86400)
  end
  redis.call('DEL', JOB .. key, REPLY .. key, STOP .. key)
  redis.call('ZREM', KEYS[2], key)
end
if #keys < tonumber(ARGV[2]) then
  redis.call('DEL', KEYS[1], KEYS[2])
end
return #keys
