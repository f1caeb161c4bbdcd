-- Changes an actor's record.
-- KEYS = actor actor_keys
-- ARGV = actor expected_revision request_hash request_secs public_key room
--
-- `expected_revision` is the one that the change builds on, '' for any. `public_key` is in force from now on. `room` is `reserve`
-- where Redis may be full. With a request id, the request follows the keys; after the arguments follow fields.
-- Returns the revision of the change; 0 when the same request had made it before.
local request = KEYS[KEYS_NAMED + 1]
local before, no = asked_before(request, ARGV.request_hash)
if no then return no end
if before then return 0 end
local actor = redis.call('HMGET', KEYS.actor, 'revision', 'deleted_at', 'pubkey')
-- Treats a record that a program wrote without a revision as revision 0.
if redis.call('EXISTS', KEYS.actor) == 1 then actor[1] = actor[1] or '0' end
if not actor[1] or (actor[2] or '') ~= '' then return refuse('ACTOR_GONE', 'actor ' .. ARGV.actor) end
if ARGV.expected_revision ~= '' and actor[1] ~= ARGV.expected_revision then
  return refuse('ACTOR_CHANGED', 'actor ' .. ARGV.actor .. ' is at revision ' .. actor[1])
end
-- Refuses the key of another actor and a former key of this one: a key identifies what an actor has signed.
if actor[3] ~= ARGV.public_key and redis.call('HEXISTS', KEYS.actor_keys, ARGV.public_key) == 1 then
  return refuse('KEY_TAKEN', 'an actor has, or had, this key: make a new one')
end
if ARGV.room == 'reserve' then use_reserve() end

local revision = change('{"kind":"actor","actor_id":' .. ARGV.actor .. '}')
redis.call('HSET', KEYS.actor, 'updated_at', ARGV.now, 'revision', revision, unpack(ARGV, ARGV_NAMED + 1))
-- Indexes the key of an actor that was registered before keys were indexed. Letters to a former key arrive as well.
redis.call('HSETNX', KEYS.actor_keys, ARGV.public_key, ARGV.actor)
remember(request, ARGV.request_hash, ARGV.request_secs)
return revision
