-- A coordinator has another root from now on; the old one is refused. What is bound to it follows in steps (`succeed`).
-- ARGV = old_root new_root authority
--
-- `authority` is `operator` when somebody decides who may bring back a root that was succeeded.
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
-- Nothing is kept of strangers.
if redis.call('EXISTS', CONTEXTS .. old) == 0 then return 'unknown' end
redis.call('HDEL', SUCCESSORS, new)
-- Each leads to the last one.
local roots = redis.call('HGETALL', SUCCESSORS)
for i = 1, #roots, 2 do
  if roots[i + 1] == old then redis.call('HSET', SUCCESSORS, roots[i], new) end
end
redis.call('HSET', SUCCESSORS, old, new)
return 'noted'
