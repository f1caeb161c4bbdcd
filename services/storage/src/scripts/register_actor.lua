-- Keeps a new actor.
-- KEYS 3 actor, 4 actors, 5 actor_keys, 6 request (only with a request id)
-- ARGV 4 actor id, 5 request hash, 6 seconds to remember it, 7 public key, 8.. fields
-- Gives 1 and the revision; or 0 and the id of the actor of then.
if KEYS[6] then
  local made = redis.call('HMGET', KEYS[6], 'hash', 'actor_id')
  if made[1] then
    if made[1] ~= ARGV[5] then return refuse('REQUEST_ID_REUSED', 'the request id came with another body before') end
    return {0, made[2]}
  end
end
local last = tonumber(redis.call('HGET', KEYS[1], 'actor') or '0')
if redis.call('EXISTS', KEYS[3]) == 1 then return refuse('ACTOR_EXISTS', tostring(last)) end

local revision = change('{"kind":"actor","actor_id":' .. ARGV[4] .. '}')
if tonumber(ARGV[4]) > last then redis.call('HSET', KEYS[1], 'actor', ARGV[4]) end
redis.call('HSET', KEYS[3], 'revision', revision, unpack(ARGV, 8))
redis.call('SADD', KEYS[4], ARGV[4])
-- Letters to a key that several actors have are for the first of them.
redis.call('HSETNX', KEYS[5], ARGV[7], ARGV[4])
if KEYS[6] then
  redis.call('HSET', KEYS[6], 'hash', ARGV[5], 'actor_id', ARGV[4])
  redis.call('EXPIRE', KEYS[6], ARGV[6])
end
return {1, revision}
