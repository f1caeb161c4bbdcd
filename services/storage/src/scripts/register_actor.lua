-- Stores a new actor.
-- KEYS = actor actors actor_keys
-- ARGV = actor request_hash request_secs public_key
--
-- With a request id, the request follows the keys; after the arguments follow fields.
-- Returns 1 and the revision; or 0 and the id of the actor of the first call.
local request = KEYS[KEYS_NAMED + 1]
local before, no = asked_before(request, ARGV.request_hash)
if no then return no end
if before then return {0, redis.call('HGET', request, 'actor_id')} end
local last = tonumber(redis.call('HGET', KEYS.ids, 'actor') or '0')
if redis.call('EXISTS', KEYS.actor) == 1 then return refuse('ACTOR_EXISTS', tostring(last)) end
-- Refuses a key that any actor has or had: signatures of one actor must never count as another's.
if redis.call('HEXISTS', KEYS.actor_keys, ARGV.public_key) == 1 then
  return refuse('KEY_TAKEN', 'an actor has, or had, this key: make a new one')
end

local revision = change('{"kind":"actor","actor_id":' .. ARGV.actor .. '}')
if tonumber(ARGV.actor) > last then redis.call('HSET', KEYS.ids, 'actor', ARGV.actor) end
redis.call('HSET', KEYS.actor, 'revision', revision, unpack(ARGV, ARGV_NAMED + 1))
redis.call('SADD', KEYS.actors, ARGV.actor)
redis.call('HSET', KEYS.actor_keys, ARGV.public_key, ARGV.actor)
remember(request, ARGV.request_hash, ARGV.request_secs, 'actor_id', ARGV.actor)
return {1, revision}
