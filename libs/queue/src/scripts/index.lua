-- Indexes contexts by coordinator, for stores of versions that did not. A part at a time.
-- ARGV = from count
--
-- `from` is the cursor, `count` the number of keys to look at.
-- Returns the next cursor; nothing when this was the last part.
if redis.call('HEXISTS', SUPERVISOR, 'indexed') == 1 then return '' end
local part = redis.call('SCAN', ARGV.from, 'MATCH', BINDING .. '*', 'COUNT', ARGV.count, 'TYPE', 'hash')
for _, binding in ipairs(part[2]) do
  local coordinator = redis.call('HGET', binding, 'coordinator')
  if coordinator then
    redis.call('SADD', CONTEXTS .. coordinator, string.sub(binding, #BINDING + 1))
  end
end
if part[1] ~= '0' then return part[1] end
-- Removes the nodes of coordinators without any context.
local known = redis.call('HGETALL', SUPERVISOR)
for i = 1, #known, 2 do
  if string.sub(known[i], 1, #NODE) == NODE
    and redis.call('EXISTS', CONTEXTS .. string.sub(known[i], #NODE + 1)) == 0 then
    redis.call('HDEL', SUPERVISOR, known[i])
  end
end
redis.call('HSET', SUPERVISOR, 'indexed', 1)
return ''
