-- Removes blobs that nobody has referred to for long enough; each is looked at again here.
-- KEYS 4 blob_idle
-- ARGV 5 those idle since this moment or longer go, 6.. hashes
-- Gives how many went.
local no = closed()
if no then return no end
use_reserve()
local count = 0
for a = 6, #ARGV do
  local hash = ARGV[a]
  local blob, refs = own('blob:' .. hash), own('blob_refs:' .. hash)
  local since = redis.call('ZSCORE', KEYS[4], hash)
  if redis.call('EXISTS', refs) == 1 then
    redis.call('ZREM', KEYS[4], hash)
  elseif since and tonumber(since) <= tonumber(ARGV[5]) then
    local known = redis.call('HMGET', blob, 'chunks', 'size', 'counted')
    if known[3] == '1' then redis.call('HINCRBY', KEYS[2], 'blob_bytes', '-' .. known[2]) end
    -- Whatever was written there, no blob has more.
    for n = 0, math.min(tonumber(known[1] or '0') or 0, 32) - 1 do
      redis.call('UNLINK', blob .. ':' .. n)
    end
    redis.call('UNLINK', blob)
    redis.call('ZREM', KEYS[4], hash)
    count = count + 1
  end
end
return count
