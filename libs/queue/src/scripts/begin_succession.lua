-- Begins a root key rotation: the old root is refused from now on. `succeed` transfers everything bound to it in steps.
-- ARGV = old_root new_root authority
--
-- `authority` is `operator` if the operator decides, who may restore a root that was succeeded.
local old, new = ARGV.old_root, ARGV.new_root
local after = redis.call('HGET', SUCCESSORS, old)
if after == new then return 'known' end
if after then
  return redis.error_reply('ROOT_SUCCEEDED the root after ' .. old .. ' is ' .. after .. ' already')
end
local beyond = redis.call('HGET', SUCCESSORS, new)
if beyond and ARGV.authority ~= 'operator' then
  return redis.error_reply('ROOT_SUCCEEDED ' .. new .. ' was succeeded itself, by ' .. beyond)
end
-- Nothing is kept of roots without contexts.
if redis.call('EXISTS', CONTEXTS .. old) == 0 then return 'unknown' end
redis.call('HDEL', SUCCESSORS, new)
-- Points every root at the last one.
local roots = redis.call('HGETALL', SUCCESSORS)
for i = 1, #roots, 2 do
  if roots[i + 1] == old then redis.call('HSET', SUCCESSORS, roots[i], new) end
end
redis.call('HSET', SUCCESSORS, old, new)
return 'noted'
