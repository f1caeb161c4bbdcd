-- Takes, holds or ends the lease of a scheduler replica.
-- KEYS 3 replicas
-- ARGV 4 its name, 5 owner: this start of it, 6 address, 7 how long a lease lasts in milliseconds, 8 `hello`, `again`,
--      `beat` or `end`
use_reserve()
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function expiry(entry)
  local owner, secs, millis = string.match(entry, '^(%S+) (%d+)%.(%d+) ')
  return owner, secs and tonumber(secs) * 1000 + tonumber(millis) or 0
end

local entry = redis.call('HGET', KEYS[3], ARGV[4])
local owner, ends = nil, 0
if entry then owner, ends = expiry(entry) end
local is_mine = owner == ARGV[5] and ends > now
if ARGV[8] == 'end' then
  if owner == ARGV[5] then
    redis.call('HDEL', KEYS[3], ARGV[4])
    redis.call('PUBLISH', ARGV[1], 'replicas')
  end
  return 1
end
-- Who joins again has lost nothing only if its lease never ended meanwhile.
if (ARGV[8] == 'beat' or ARGV[8] == 'again') and not is_mine then return refuse('LEASE_LOST', 'the lease of ' .. ARGV[4]) end

local till = now + tonumber(ARGV[7])
local fresh = string.format('%s %.0f.%03.0f %s', ARGV[5], math.floor(till / 1000), till % 1000, ARGV[6])
redis.call('HSET', KEYS[3], ARGV[4], fresh)
if ARGV[8] == 'hello' or ARGV[8] == 'again' then
  -- Whoever went without a word leaves an entry behind.
  local all = redis.call('HGETALL', KEYS[3])
  for e = 1, #all, 2 do
    local _, over = expiry(all[e + 1])
    if over <= now then redis.call('HDEL', KEYS[3], all[e]) end
  end
  redis.call('PUBLISH', ARGV[1], 'replicas')
end
return 1
