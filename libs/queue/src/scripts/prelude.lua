-- Shared by every script: names of keys (checked against libs/keys by a test), the clock, events.
-- A supervisor's Redis is never a cluster, so keys may be derived here.
local DONE = 'hero:done'
local SEQ = 'hero:seq'
local QUEUES = 'hero:queues'
local INSTANCES = 'hero:instances'
local JOB = 'hero:job:'
local UNCLAIMED = 'hero:unclaimed:'
local CLAIMS = 'hero:claims:'
local STOP = 'hero:stop:'
local REPLY = 'hero:q:reply:'
local PRESENCE = 'hero:meta:actor:inst:'
local STATS = 'hero:meta:queue:stats:'

-- Unix seconds with three decimals, by the server's clock.
local function now()
  local t = redis.call('TIME')
  return string.format('%d.%03d', t[1], math.floor(t[2] / 1000))
end

-- Appends an event of a job to the stream that the supervisor reads; numbered per job.
local function tell(key, kind, data)
  local job = JOB .. key
  local n = redis.call('HINCRBY', job, 'events', 1)
  local o = redis.call('HMGET', job, 'coordinator', 'context_id', 'flow_id')
  redis.call('XADD', DONE, '*', 'kind', kind, 'key', key, 'n', n,
    'coordinator', o[1], 'context_id', o[2], 'flow_id', o[3], 'data', data)
end

-- Ends a job: record, event, reply. `data` is the event; `finish` is its inner part for whoever waits.
local function end_job(key, status, data)
  local job = JOB .. key
  redis.call('HSET', job, 'status', status, 'ended_at', now(), 'end', data)
  tell(key, 'ended', data)
  redis.call('RPUSH', REPLY .. key, data)
  redis.call('EXPIRE', REPLY .. key, 3600)
end

-- Makes a queue's list anew from those that still wait.
local function sweep(queue)
  local entries = redis.call('LRANGE', queue, 0, -1)
  redis.call('DEL', queue)
  for from = 1, #entries, 1000 do
    local last = math.min(from + 999, #entries)
    local seqs = redis.call('ZMSCORE', UNCLAIMED .. queue, unpack(entries, from, last))
    local kept = {}
    for i = from, last do
      if seqs[i - from + 1] then kept[#kept + 1] = entries[i] end
    end
    if #kept > 0 then redis.call('RPUSH', queue, unpack(kept)) end
  end
end

-- Takes a waiting job out of its queue. Its entry stays in the list, where whoever comes to it passes it
-- over: to search for each of many would cost their number squared. When such entries are most of the
-- list, or all of it, it is made anew.
local function unqueue(key, queue)
  redis.call('ZREM', UNCLAIMED .. queue, key)
  local waiting = redis.call('ZCARD', UNCLAIMED .. queue)
  if waiting == 0 or redis.call('LLEN', queue) > 2 * waiting + 1000 then sweep(queue) end
end

-- Tells a running job's instance to stop it.
local function tell_to_stop(key, instance, grace)
  redis.call('HSET', JOB .. key, 'stop_requested', grace)
  local kind, group, n = string.match(instance, '^([^:]+):([^:]+):([^:]+)$')
  local control = 'hero:q:ctl:type:' .. kind .. ':group:' .. group .. ':inst:' .. n
  redis.call('RPUSH', control, '{"command":"stop","job_key":"' .. key .. '","grace_secs":' .. grace .. '}')
  -- Should the instance be gone, nobody reads this.
  redis.call('EXPIRE', control, 86400)
end

-- A job's start as an event.
local function started_event(instance, time)
  return '{"kind":"started","instance":"' .. instance .. '","time":' .. time .. '}'
end

-- Tells again where a job stands: its coordinator asks for something that it should know, so it may have lost
-- what it has answered. An end that was not answered yet is being told anyway.
local function tell_again(key)
  local job = JOB .. key
  local known = redis.call('HMGET', job, 'status', 'claimed_by', 'started_at', 'end', 'job', 'again')
  if known[1] == 'started' then
    tell(key, 'started', started_event(known[2], known[3]))
  elseif known[1] and not known[5] and not known[6] then
    redis.call('HSET', job, 'again', 1)
    if known[4] then
      tell(key, 'ended', known[4])
    elseif known[1] == 'returned' then
      tell(key, 'returned', '{"kind":"returned"}')
    end
  end
end
