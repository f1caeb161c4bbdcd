-- The coordinator has these events.
-- KEYS: 1 hero:done   ARGV: 1 consumer group  2 seconds to keep ended jobs  3… pairs of entry id and ended
--       job's key, or nothing
use_reserve()
for i = 3, #ARGV, 2 do
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  redis.call('XDEL', KEYS[1], ARGV[i])
  local key = ARGV[i + 1]
  if key ~= '' then
    local context = redis.call('HGET', JOB .. key, 'context')
    if context then keep_end(key, context, ARGV[2]) end
  end
end
return redis.status_reply('OK')
