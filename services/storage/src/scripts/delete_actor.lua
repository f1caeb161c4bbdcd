-- Removes an actor. Its number is never given again: what is left says that it was.
-- Its keys stay its own, so that nobody else is ever taken for it.
-- KEYS 3 actor, 4 actors, 5 actor_keys, 6 request (only with a request id)
-- ARGV 4 actor id, 5 the revision that it builds on, 6 request hash, 7 seconds to remember it, 8.. keys that another actor has as
--      well, as it could be once, each with the id of that one
-- Gives the revision of the change; 0 when the same request had made it before.
use_reserve()
local before, no = asked_before(KEYS[6], ARGV[6])
if no then return no end
if before then return 0 end
local actor = redis.call('HMGET', KEYS[3], 'revision', 'deleted_at')
-- One that a program wrote has none.
if redis.call('EXISTS', KEYS[3]) == 1 then actor[1] = actor[1] or '0' end
if not actor[1] or (actor[2] or '') ~= '' then return refuse('ACTOR_GONE', 'actor ' .. ARGV[4]) end
if actor[1] ~= ARGV[5] then return refuse('ACTOR_CHANGED', 'actor ' .. ARGV[4] .. ' is at revision ' .. actor[1]) end

local revision = change('{"kind":"actor","actor_id":' .. ARGV[4] .. '}')
redis.call('HSET', KEYS[3], 'deleted_at', ARGV[2], 'updated_at', ARGV[2], 'address', '[]', 'home_context', '', 'revision', revision)
redis.call('SREM', KEYS[4], ARGV[4])
for a = 8, #ARGV, 2 do
  if redis.call('HGET', KEYS[5], ARGV[a]) == ARGV[4] then redis.call('HSET', KEYS[5], ARGV[a], ARGV[a + 1]) end
end
remember(KEYS[6], ARGV[6], ARGV[7])
return revision
