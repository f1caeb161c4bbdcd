-- Counts what a version that did not count has made: flows that have not ended, and blobs. Counted items are marked, so that
-- none counts twice, even if two storages count at the same time.
-- ARGV = kind
--
-- `kind` is `flows` or `blobs`; or `done`, when there are no more. After the arguments follow the ids of the flows, or the hashes
-- of the blobs.
local no = closed()
if no then return no end
use_reserve()
if ARGV.kind == 'done' then
  redis.call('HSET', KEYS.ids, 'counted', 1)
  return 0
end
local count = 0
for a = ARGV_NAMED + 1, #ARGV do
  if ARGV.kind == 'flows' then
    local key = own('flow:' .. ARGV[a])
    local flow = redis.call('HMGET', key, 'status', 'node_count', 'counted', 'deleting')
    local is_open = flow[1] == 'created' or flow[1] == 'started'
    if is_open and flow[2] and not flow[4] and flow[3] ~= '1' then
      redis.call('HSET', key, 'counted', 1)
      count_open(1, tonumber(flow[2]))
      count = count + 1
    end
  else
    local key = own('blob:' .. ARGV[a])
    local blob = redis.call('HMGET', key, 'size', 'counted')
    if tonumber(blob[1]) and blob[2] ~= '1' then
      redis.call('HSET', key, 'counted', 1)
      redis.call('HINCRBY', KEYS.ids, 'blob_bytes', blob[1])
      count = count + 1
    end
  end
end
return count
