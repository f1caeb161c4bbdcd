-- Makes a blob visible whose chunks were written before.
-- KEYS = blob blob_refs blob_idle
-- ARGV = hash size idle_since blob_bytes_max limit
--
-- The blob counts as idle since `idle_since`. At most `blob_bytes_max` bytes of blobs may be stored, by the limit called `limit`.
-- After the keys follow the chunks.
-- Returns how many bytes of blobs there are.
local no = closed()
if no then return no end
if redis.call('EXISTS', KEYS.blob) == 0 then
  for k = KEYS_NAMED + 1, #KEYS do
    if redis.call('EXISTS', KEYS[k]) == 0 then return refuse('CHUNK_MISSING', KEYS[k]) end
  end
  local bytes = tonumber(redis.call('HGET', KEYS.ids, 'blob_bytes') or '0') + tonumber(ARGV.size)
  local full = beyond(ARGV.limit, ARGV.blob_bytes_max, bytes)
  if full then
    -- Removes the chunks: until they expire they would be stored without being counted.
    if #KEYS > KEYS_NAMED then redis.call('UNLINK', unpack(KEYS, KEYS_NAMED + 1)) end
    return full
  end
  for k = KEYS_NAMED + 1, #KEYS do redis.call('PERSIST', KEYS[k]) end
  redis.call('HSET', KEYS.blob, 'size', ARGV.size, 'chunks', #KEYS - KEYS_NAMED, 'created_at', ARGV.now, 'counted', 1)
  redis.call('HINCRBY', KEYS.ids, 'blob_bytes', ARGV.size)
  audit(0)
end
-- Restarts the time until an unreferenced blob may be removed, unless it has more left: a reference to it is about to follow.
if redis.call('EXISTS', KEYS.blob_refs) == 0 then
  local since = redis.call('ZSCORE', KEYS.blob_idle, ARGV.hash)
  if not since or tonumber(since) < tonumber(ARGV.idle_since) then
    redis.call('ZADD', KEYS.blob_idle, ARGV.idle_since, ARGV.hash)
  end
end
return tonumber(redis.call('HGET', KEYS.ids, 'blob_bytes') or '0')
