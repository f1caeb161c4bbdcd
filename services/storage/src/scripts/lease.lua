-- Acquires, renews or ends the lease of a scheduler replica.
-- KEYS = replicas
-- ARGV = name owner address lease_millis deed
--
-- `owner` is this start of the replica. A lease lasts `lease_millis`; `deed` is `hello`, `again`, `beat` or `end`.
use_reserve()
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function expiry(entry)
  local owner, secs, millis = string.match(entry, '^(%S+) (%d+)%.(%d+) ')
  return owner, secs and tonumber(secs) * 1000 + tonumber(millis) or 0
end

local entry = redis.call('HGET', KEYS.replicas, ARGV.name)
local owner, ends = nil, 0
if entry then owner, ends = expiry(entry) end
local is_mine = owner == ARGV.owner and ends > now
if ARGV.deed == 'end' then
  if owner == ARGV.owner then
    redis.call('HDEL', KEYS.replicas, ARGV.name)
    redis.call('PUBLISH', ARGV.hint, 'replicas')
  end
  return 1
end
-- Requires an unbroken lease: only then has a replica that joins again lost nothing.
if (ARGV.deed == 'beat' or ARGV.deed == 'again') and not is_mine then
  return refuse('LEASE_LOST', 'the lease of ' .. ARGV.name)
end

local till = now + tonumber(ARGV.lease_millis)
local fresh = string.format('%s %.0f.%03.0f %s', ARGV.owner, math.floor(till / 1000), till % 1000, ARGV.address)
redis.call('HSET', KEYS.replicas, ARGV.name, fresh)
if ARGV.deed == 'hello' or ARGV.deed == 'again' then
  -- Removes the entries of replicas that went away without ending their lease.
  local all = redis.call('HGETALL', KEYS.replicas)
  for e = 1, #all, 2 do
    local _, over = expiry(all[e + 1])
    if over <= now then redis.call('HDEL', KEYS.replicas, all[e]) end
  end
  redis.call('PUBLISH', ARGV.hint, 'replicas')
end
return 1
