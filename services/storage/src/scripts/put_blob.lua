-- Makes a blob visible whose chunks were written before.
-- KEYS 4 blob, 5 blob_refs, 6 blob_idle, 7.. chunks
-- ARGV 5 hash, 6 size
local no = closed()
if no then return no end
if redis.call('EXISTS', KEYS[4]) == 0 then
  for k = 7, #KEYS do
    if redis.call('EXISTS', KEYS[k]) == 0 then return refuse('CHUNK_MISSING', KEYS[k]) end
  end
  for k = 7, #KEYS do redis.call('PERSIST', KEYS[k]) end
  redis.call('HSET', KEYS[4], 'size', ARGV[6], 'chunks', #KEYS - 6, 'created_at', ARGV[3])
  audit(0)
end
-- Somebody means to refer to it: the time until it may be removed begins anew.
if redis.call('EXISTS', KEYS[5]) == 0 then redis.call('ZADD', KEYS[6], ARGV[3], ARGV[5]) end
return 1
