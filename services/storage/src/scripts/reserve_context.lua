-- Reserves a context's id, so that no other storage writes that context.
-- KEYS = contexts
-- ARGV = context context_uid request_hash request_secs reserved_from greatest creator contexts_max
--
-- `context` is '' for any that is free. A reservation from before `reserved_from` has lapsed. `greatest` is the greatest id that
-- a context can have. `creator` is an actor, who may have created `contexts_max` contexts, or '' for the bootstrap identity. With
-- a request id, the request follows the keys.
-- Returns id and uid: its own and 1, or those of the same request before and 0.

-- Maximum number of ids that one call looks at.
local LOOKED_AT_MAX = 10000
local request = KEYS[KEYS_NAMED + 1]
local before, no = asked_before(request, ARGV.request_hash)
if no then return no end
if before then
  local made = redis.call('HMGET', request, 'context_id', 'uid')
  local reserved = redis.call('HGET', KEYS.ids, 'context:' .. made[1])
  local is_reserved = reserved and string.match(reserved, '^%x+') == made[2]
  if not is_reserved and redis.call('SISMEMBER', KEYS.contexts, made[1]) == 0 then
    return refuse('CONTEXT_GONE', 'the context that this request made was removed')
  end
  return {made[1], made[2], 0}
end
-- Returns why an id is not free. A reservation lapses if its storage died before it wrote the context.
local function why_not(id)
  if redis.call('SISMEMBER', KEYS.contexts, id) == 1 then return 'CONTEXT_EXISTS' end
  if redis.call('HEXISTS', KEYS.ids, 'importing:' .. id) == 1 then return 'CONTEXT_RESERVED' end
  local reserved = redis.call('HGET', KEYS.ids, 'context:' .. id)
  local made_at = reserved and tonumber(string.match(reserved, ' ([%d.]+)$'))
  return made_at and made_at > tonumber(ARGV.reserved_from) and 'CONTEXT_RESERVED'
end

-- Counts the existing contexts that an actor created. A context that was never written does not count any more, nor one that
-- belongs to another creator by now.
local function created_by(actor)
  local created = own('contexts_of:' .. actor)
  local count = redis.call('SCARD', created)
  if count < tonumber(ARGV.contexts_max) then return count end
  for _, id in ipairs(redis.call('SMEMBERS', created)) do
    if redis.call('HGET', own('context_creators'), id) ~= actor or not why_not(id) then
      redis.call('SREM', created, id)
      count = count - 1
    end
  end
  return count
end

local actor = ARGV.creator
local asked = actor ~= '' and created_by(actor) + 1
if asked and asked > tonumber(ARGV.contexts_max) then
  return refuse('LIMIT_EXCEEDED', 'actor_contexts_max ' .. ARGV.contexts_max .. ' ' .. asked)
end

local id = ARGV.context
if id ~= '' then
  -- Leaves the counter alone for an id that the caller chose: else the ids below it would be lost to everybody.
  local why = why_not(id)
  if why then return refuse(why, 'context ' .. id) end
else
  -- Continues after the last id, then with ids that are free again.
  local last, greatest = tonumber(redis.call('HGET', KEYS.ids, 'context') or '0'), tonumber(ARGV.greatest)
  local looked_at = 0
  repeat
    if looked_at == greatest then return refuse('CONTEXTS_EXHAUSTED', 'all ' .. looked_at .. ' are taken') end
    if looked_at == LOOKED_AT_MAX then
      redis.call('HSET', KEYS.ids, 'context', id)
      return refuse('CONTEXT_EXISTS', 'context ' .. id)
    end
    last, looked_at = last >= greatest and 1 or last + 1, looked_at + 1
    -- Avoids the exponent form of large numbers.
    id = string.format('%d', last)
  until not why_not(id)
  redis.call('HSET', KEYS.ids, 'context', id)
end

redis.call('HSET', KEYS.ids, 'context:' .. id, ARGV.context_uid .. ' ' .. ARGV.now)
local former = redis.call('HGET', own('context_creators'), id)
if former then
  redis.call('SREM', own('contexts_of:' .. former), id)
  redis.call('HDEL', own('context_creators'), id)
end
if actor ~= '' then
  redis.call('SADD', own('contexts_of:' .. actor), id)
  redis.call('HSET', own('context_creators'), id, actor)
end
remember(request, ARGV.request_hash, ARGV.request_secs, 'context_id', id, 'uid', ARGV.context_uid)
return {id, ARGV.context_uid, 1}
