-- What an instance was handed and has not fetched waits again, at its place: it has certainly not begun. One that is to be stopped
-- is left to end as what the instance holds.
local function put_handed_back(instance)
  local handed = redis.call('LRANGE', HANDED .. instance, 0, -1)
  redis.call('DEL', HANDED .. instance)
  for i = #handed, 1, -1 do
    local key = string.match(handed[i], '^%S+')
    local job = JOB .. (key or '')
    local known = redis.call('HMGET', job, 'state', 'claimed_by', 'seq', 'queue', 'stop_requested')
    if known[1] == 'started' and known[2] == instance and not known[5] then
      redis.call('ZREM', CLAIMS .. instance, key)
      redis.call('HSET', job, 'state', 'queued', 'status', 'queued')
      redis.call('HDEL', job, 'claimed_by', 'started_at')
      stand_in_line(key, known[4], known[3])
      redis.call('ZADD', UNCLAIMED .. known[4], known[3], key)
      redis.call('SADD', QUEUES, known[4])
      redis.call('LPUSH', known[4], key)
    end
  end
end
