-- Changes an actor's record.
-- KEYS 3 actor, 4 actor_keys, 5 request (only with a request id)
-- ARGV 4 actor id, 5 the revision that it builds on ('' for any), 6 request hash, 7 seconds to remember it,
--      8 the public key in force from now on, 9 `reserve` where Redis may be full, 10.. fields
-- Gives the revision of the change; 0 when the same request had made it before.
local before, no = asked_before(KEYS[5], ARGV[6])
if no then return no end
if before then return 0 end
local actor = redis.call('HMGET', KEYS[3], 'revision', 'deleted_at', 'pubkey')
-- One that a program wrote has none.
if redis.call('EXISTS', KEYS[3]) == 1 then actor[1] = actor[1] or '0' end
if not actor[1] or (actor[2] or '') ~= '' then return refuse('ACTOR_GONE', 'actor ' .. ARGV[4]) end
if ARGV[5] ~= '' and actor[1] ~= ARGV[5] then
  return refuse('ACTOR_CHANGED', 'actor ' .. ARGV[4] .. ' is at revision ' .. actor[1])
end
-- What an actor says is from its key: nobody may put that of another in its place, nor one of its own that was given up.
if actor[3] ~= ARGV[8] and redis.call('HEXISTS', KEYS[4], ARGV[8]) == 1 then
  return refuse('KEY_TAKEN', 'an actor has, or had, this key: make a new one')
end
if ARGV[9] == 'reserve' then use_reserve() end

local revision = change('{"kind":"actor","actor_id":' .. ARGV[4] .. '}')
redis.call('HSET', KEYS[3], 'updated_at', ARGV[2], 'revision', revision, unpack(ARGV, 10))
-- One that was registered before keys were found this way is found from now on. Letters to a former key arrive as well.
redis.call('HSETNX', KEYS[4], ARGV[8], ARGV[4])
remember(KEYS[5], ARGV[6], ARGV[7])
return revision
