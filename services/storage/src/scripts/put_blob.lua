-- Makes a blob visible whose chunks were written before.
-- KEYS 4 blob, 5 blob_refs, 6 blob_idle, 7.. chunks
-- ARGV 5 hash, 6 size, 7 since when it counts as idle, 8 how many bytes of blobs there may be, 9 of which limit that comes
-- Gives how many there are.
local no = closed()
if no then return no end
if redis.call('EXISTS', KEYS[4]) == 0 then
  for k = 7, #KEYS do
    if redis.call('EXISTS', KEYS[k]) == 0 then return refuse('CHUNK_MISSING', KEYS[k]) end
  end
  local bytes = tonumber(redis.call('HGET', KEYS[2], 'blob_bytes') or '0') + tonumber(ARGV[6])
  local full = beyond(ARGV[9], ARGV[8], bytes)
  if full then
    -- Until they expire they would be kept without being counted.
    if #KEYS > 6 then redis.call('UNLINK', unpack(KEYS, 7)) end
    return full
  end
  for k = 7, #KEYS do redis.call('PERSIST', KEYS[k]) end
  redis.call('HSET', KEYS[4], 'size', ARGV[6], 'chunks', #KEYS - 6, 'created_at', ARGV[3], 'counted', 1)
  redis.call('HINCRBY', KEYS[2], 'blob_bytes', ARGV[6])
  audit(0)
end
-- Somebody means to refer to it: the time until it may be removed begins anew, unless it has more left.
if redis.call('EXISTS', KEYS[5]) == 0 then
  local since = redis.call('ZSCORE', KEYS[6], ARGV[5])
  if not since or tonumber(since) < tonumber(ARGV[7]) then redis.call('ZADD', KEYS[6], ARGV[7], ARGV[5]) end
end
return tonumber(redis.call('HGET', KEYS[2], 'blob_bytes') or '0')
