-- Removes some records of a flow that is being removed.
-- KEYS = flow nodes carriers held blob_idle dead_letters
-- ARGV = flow_uid jobs logs messages refs
--
-- `carriers` are the flow's messages. `jobs`, `logs`, `messages` and `refs` are their numbers. After the keys follow the jobs, the
-- logs, the messages and the blob_refs. After the arguments follow the job ids, and for each reference the number of the blob_refs
-- and of the job.
local no = closed()
if no then return no end
use_reserve()
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'deleting')
if flow[1] ~= ARGV.flow_uid or not flow[2] then return refuse('FLOW_GONE', 'the flow') end
local J, L, M, R = tonumber(ARGV.jobs), tonumber(ARGV.logs), tonumber(ARGV.messages), tonumber(ARGV.refs)
for r = 1, R do
  local refs = KEYS[KEYS_NAMED + J + L + M + tonumber(ARGV[ARGV_NAMED + J + 2 * r - 1])]
  local removed = redis.call('SREM', refs, KEYS[KEYS_NAMED + tonumber(ARGV[ARGV_NAMED + J + 2 * r])])
  if removed == 1 and redis.call('EXISTS', refs) == 0 then
    redis.call('ZADD', KEYS.blob_idle, ARGV.now, string.match(refs, '%x+$'))
  end
end
for m = 1, M do
  local key = KEYS[KEYS_NAMED + J + L + m]
  redis.call('ZREM', KEYS.held, key)
  redis.call('SREM', KEYS.carriers, key)
  redis.call('ZREM', KEYS.dead_letters, key)
end
for k = KEYS_NAMED + 1, KEYS_NAMED + J + L + M do redis.call('UNLINK', KEYS[k]) end
for j = 1, J do redis.call('HDEL', KEYS.nodes, ARGV[ARGV_NAMED + j]) end
return 1
