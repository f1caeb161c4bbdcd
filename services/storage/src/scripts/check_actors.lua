-- Checks actors against the set of all of them, the index of keys, and the counter of ids.
-- KEYS = actors actor_keys
--
-- After the arguments follow ids.
-- Returns the findings.

-- Checks that the key of an actor leads to it. One that a program wrote has no entry.
local function check_key(id, name, key)
  local owner = redis.call('HGET', KEYS.actor_keys, key)
  if owner == id then return end
  if owner then
    report('ACTOR_KEY', name, 'the key of the actor leads to actor ' .. string.sub(owner, 1, 40))
  elseif report('ACTOR_KEY', name, 'the key of the actor is not in actor_keys', 'it is entered') then
    redis.call('HSET', KEYS.actor_keys, key, id)
  end
end

local function check(id)
  local name = 'actor:' .. id
  local is_listed = redis.call('SISMEMBER', KEYS.actors, id) == 1
  local actor = redis.call('HMGET', own(name), 'id', 'revision', 'deleted_at', 'pubkey')
  local is_there = actor[1] and (actor[3] or '') == ''
  if is_listed and not is_there then
    local problem = 'the actor ' .. (actor[1] and 'was removed' or 'does not exist') .. ', and is named in actors'
    if report('ACTOR_LIST', name, problem, 'the entry is removed') then redis.call('SREM', KEYS.actors, id) end
  end
  -- A record without a revision was written by a program, which does as it likes about lists.
  if not actor[1] or not actor[2] then return end
  if is_there and not is_listed and report('ACTOR_LIST', name, 'the actor is not in actors', 'it is listed') then
    redis.call('SADD', KEYS.actors, id)
  end
  if is_there and (actor[4] or '') ~= '' then check_key(id, name, actor[4]) end
  local last = redis.call('HGET', KEYS.ids, 'actor') or '0'
  local problem = 'counter actor is ' .. string.sub(last, 1, 40) .. ', and ' .. id .. ' was given'
  if (tonumber(last) or 0) < tonumber(id) and report('ID_COUNTER_BEHIND', 'ids', problem, 'the counter is raised') then
    redis.call('HSET', KEYS.ids, 'actor', id)
  end
end

for a = ARGV_NAMED + 1, #ARGV do check(ARGV[a]) end
return findings
