-- Changes where messages to an actor are delivered.
-- KEYS 3 actor, 4 actor_keys, 5 request (only with a request id)
-- ARGV 4 actor id, 5 the revision that it builds on ('' for any), 6 addresses, 7 home context ('' for none),
--      8 request hash, 9 seconds to remember it
-- Gives the revision of the change; 0 when the same request had made it before.
if KEYS[5] then
  local hash = redis.call('HGET', KEYS[5], 'hash')
  if hash then
    if hash ~= ARGV[8] then return refuse('REQUEST_ID_REUSED', 'the request id came with another body before') end
    return 0
  end
end
local actor = redis.call('HMGET', KEYS[3], 'revision', 'pubkey')
if not actor[1] then return refuse('ACTOR_GONE', 'actor ' .. ARGV[4]) end
if ARGV[5] ~= '' and actor[1] ~= ARGV[5] then
  return refuse('ACTOR_CHANGED', 'actor ' .. ARGV[4] .. ' is at revision ' .. actor[1])
end

local revision = change('{"kind":"actor","actor_id":' .. ARGV[4] .. '}')
redis.call('HSET', KEYS[3], 'address', ARGV[6], 'home_context', ARGV[7], 'updated_at', ARGV[2], 'revision', revision)
-- One that was registered before keys were found this way is found from now on.
redis.call('HSETNX', KEYS[4], actor[2], ARGV[4])
if KEYS[5] then
  redis.call('HSET', KEYS[5], 'hash', ARGV[8])
  redis.call('EXPIRE', KEYS[5], ARGV[9])
end
return revision
