-- Keeps a new actor.
-- KEYS 3 actor, 4 actors, 5 actor_keys, 6 request (only with a request id)
-- ARGV 4 actor id, 5 request hash, 6 seconds to remember it, 7 public key, 8.. fields
-- Gives 1 and the revision; or 0 and the id of the actor of then.
local before, no = asked_before(KEYS[6], ARGV[5])
if no then return no end
if before then return {0, redis.call('HGET', KEYS[6], 'actor_id')} end
local last = tonumber(redis.call('HGET', KEYS[1], 'actor') or '0')
if redis.call('EXISTS', KEYS[3]) == 1 then return refuse('ACTOR_EXISTS', tostring(last)) end
-- A key is somebody's for good: what one has signed is never taken for what another said.
if redis.call('HEXISTS', KEYS[5], ARGV[7]) == 1 then return refuse('KEY_TAKEN', 'an actor has, or had, this key: make a new one') end

local revision = change('{"kind":"actor","actor_id":' .. ARGV[4] .. '}')
if tonumber(ARGV[4]) > last then redis.call('HSET', KEYS[1], 'actor', ARGV[4]) end
redis.call('HSET', KEYS[3], 'revision', revision, unpack(ARGV, 8))
redis.call('SADD', KEYS[4], ARGV[4])
redis.call('HSET', KEYS[5], ARGV[7], ARGV[4])
remember(KEYS[6], ARGV[5], ARGV[6], 'actor_id', ARGV[4])
return {1, revision}
