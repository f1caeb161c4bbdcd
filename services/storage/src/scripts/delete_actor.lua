-- Removes an actor. Its number is never used again: a tombstone keeps it. Its keys stay its own, so that no other actor is
-- ever taken for it.
-- KEYS = actor actors actor_keys
-- ARGV = actor expected_revision request_hash request_secs
--
-- `expected_revision` is the one that the removal builds on. With a request id, the request follows the keys. After the
-- arguments follow keys that another actor has as well, as it could be once, each with the id of that one.
-- Returns the revision of the change; 0 when the same request had made it before.
use_reserve()
local request = KEYS[KEYS_NAMED + 1]
local before, no = asked_before(request, ARGV.request_hash)
if no then return no end
if before then return 0 end
local actor = redis.call('HMGET', KEYS.actor, 'revision', 'deleted_at')
-- Treats a record that a program wrote without a revision as revision 0.
if redis.call('EXISTS', KEYS.actor) == 1 then actor[1] = actor[1] or '0' end
if not actor[1] or (actor[2] or '') ~= '' then return refuse('ACTOR_GONE', 'actor ' .. ARGV.actor) end
if actor[1] ~= ARGV.expected_revision then
  return refuse('ACTOR_CHANGED', 'actor ' .. ARGV.actor .. ' is at revision ' .. actor[1])
end

local revision = change('{"kind":"actor","actor_id":' .. ARGV.actor .. '}')
redis.call('HSET', KEYS.actor, 'deleted_at', ARGV.now, 'updated_at', ARGV.now, 'address', '[]', 'home_context', '',
  'revision', revision)
redis.call('SREM', KEYS.actors, ARGV.actor)
for a = ARGV_NAMED + 1, #ARGV, 2 do
  if redis.call('HGET', KEYS.actor_keys, ARGV[a]) == ARGV.actor then
    redis.call('HSET', KEYS.actor_keys, ARGV[a], ARGV[a + 1])
  end
end
remember(request, ARGV.request_hash, ARGV.request_secs)
return revision
