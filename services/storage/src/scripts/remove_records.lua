-- Removes some of what belongs to a flow that is going.
-- KEYS 4 flow, 5 its nodes, 6 its messages, 7 msg_out_coordinator, 8 blob_idle, 9 dead_letters, then J jobs, then L logs,
--      then M messages, then blob_refs
-- ARGV 5 flow uid, 6 J, 7 L, 8 M, 9 R, then J job ids, then R times: number of the blob_refs, number of the job
local no = closed()
if no then return no end
use_reserve()
local flow = redis.call('HMGET', KEYS[4], 'uid', 'deleting')
if flow[1] ~= ARGV[5] or not flow[2] then return refuse('FLOW_GONE', 'the flow') end
local J, L, M, R = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
for r = 1, R do
  local refs = KEYS[9 + J + L + M + tonumber(ARGV[8 + J + 2 * r])]
  local removed = redis.call('SREM', refs, KEYS[9 + tonumber(ARGV[9 + J + 2 * r])])
  if removed == 1 and redis.call('EXISTS', refs) == 0 then
    redis.call('ZADD', KEYS[8], ARGV[3], string.match(refs, '%x+$'))
  end
end
for m = 1, M do
  local key = KEYS[9 + J + L + m]
  redis.call('ZREM', KEYS[7], key)
  redis.call('SREM', KEYS[6], key)
  redis.call('ZREM', KEYS[9], key)
end
for k = 10, 9 + J + L + M do redis.call('UNLINK', KEYS[k]) end
for j = 1, J do redis.call('HDEL', KEYS[5], ARGV[9 + j]) end
return 1
