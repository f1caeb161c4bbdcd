-- Removes blobs that were unreferenced for long enough; each is checked again here.
-- KEYS = blob_idle
-- ARGV = idle_since
--
-- Blobs that are idle since `idle_since` or longer are removed. After the arguments follow the hashes.
-- Returns how many were removed.
local no = closed()
if no then return no end
use_reserve()
local count = 0
for a = ARGV_NAMED + 1, #ARGV do
  local hash = ARGV[a]
  local blob, refs = own('blob:' .. hash), own('blob_refs:' .. hash)
  local since = redis.call('ZSCORE', KEYS.blob_idle, hash)
  if redis.call('EXISTS', refs) == 1 then
    redis.call('ZREM', KEYS.blob_idle, hash)
  elseif since and tonumber(since) <= tonumber(ARGV.idle_since) then
    local known = redis.call('HMGET', blob, 'chunks', 'size', 'counted')
    if known[3] == '1' then redis.call('HINCRBY', KEYS.ids, 'blob_bytes', '-' .. known[2]) end
    -- Bounds the number of chunks: no blob has more, whatever is stored there.
    for n = 0, math.min(tonumber(known[1] or '0') or 0, 32) - 1 do
      redis.call('UNLINK', blob .. ':' .. n)
    end
    redis.call('UNLINK', blob)
    redis.call('ZREM', KEYS.blob_idle, hash)
    count = count + 1
  end
end
return count
