-- Transfers everything bound to a root to its successor, a part at a time. May be repeated, and started again anywhere.
-- ARGV = old_root new_root context place count
--
-- `context` is the context to continue with, '' for none, and `place` the position in its jobs. `count` is how much to look at.
-- Returns 1 if there is more; the context and place to continue with; the numbers of contexts and jobs.
local old, new, context, place, left = ARGV.old_root, ARGV.new_root, ARGV.context, ARGV.place, tonumber(ARGV.count)
if redis.call('HGET', SUCCESSORS, old) ~= new then
  return redis.error_reply('ROOT_SUCCEEDED another root was named meanwhile')
end
local contexts, jobs = 0, 0
while left > 0 do
  if context == '' then
    context, place = redis.call('SRANDMEMBER', CONTEXTS .. old), '0'
    if not context then
      local node = redis.call('HGET', SUPERVISOR, NODE .. old)
      if node then
        redis.call('HSETNX', SUPERVISOR, NODE .. new, node)
        redis.call('HDEL', SUPERVISOR, NODE .. old)
      end
      return {0, '', '', contexts, jobs}
    end
  end
  local part = redis.call('ZSCAN', JOBS .. context, place, 'COUNT', left)
  place, left = part[1], left - 1 - #part[2] / 2
  for i = 1, #part[2], 2 do
    local job = JOB .. part[2][i]
    if redis.call('HGET', job, 'coordinator') == old then
      redis.call('HSET', job, 'coordinator', new)
      jobs = jobs + 1
    end
  end
  if place == '0' then
    if redis.call('HGET', BINDING .. context, 'coordinator') == old then
      redis.call('HSET', BINDING .. context, 'coordinator', new)
      redis.call('SADD', CONTEXTS .. new, context)
      contexts = contexts + 1
    end
    redis.call('SREM', CONTEXTS .. old, context)
    context = ''
  end
end
return {1, context, place, contexts, jobs}
