-- Instances that are ready to be handed jobs: nothing waits in their queues. The script that accepts a job hands it to one of them,
-- which fetches it from a list of its own (decision 126).

-- Maximum size of a job that is handed over: a larger one would be written twice for no gain.
local HANDED_BYTES_MAX = 65536
-- Seconds that handed jobs may wait to be fetched; an instance that is slower is handed nothing more.
local FETCH_SECS = 1

-- Returns true if an instance takes from a queue; `demands` are the ends of the names of its queues, each between commas.
local function takes_from(instance, demands, queue)
  local kind, group, n = string.match(instance, '^([^:]+):([^:]+):([^:]+)$')
  if not kind then return false end
  local shared = 'hero:q:work:type:' .. kind
  local of_group = shared .. ':group:' .. group
  for _, place in ipairs({shared, of_group, of_group .. ':inst:' .. n}) do
    local demand = string.sub(queue, 1, #place) == place and string.gsub(string.sub(queue, #place + 1), ':prio:%d+$', '')
    if demand and string.find(demands, ',' .. demand .. ',', 1, true) then return true end
  end
  return false
end

-- Returns true if an instance fetches what it is handed. One that has died is found out later.
local function does_fetch(instance)
  local first = redis.call('LINDEX', HANDED .. instance, 0)
  local since = first and tonumber(string.match(first, '^%S+ (%S+)'))
  return not first or since and tonumber(now()) - since < FETCH_SECS
end

-- Finds the least busy instance that takes from a queue and has a slot for anybody; nothing when there is none.
local function find_taker(queue)
  local takers = redis.call('HGETALL', TAKERS .. type_of(queue))
  local found, least
  for i = 1, math.min(#takers, 32), 2 do
    local instance, most, demands = takers[i], string.match(takers[i + 1], '^(%d+) (.*)$')
    if most and takes_from(instance, demands, queue) then
      local busy = redis.call('ZCARD', CLAIMS .. instance)
      if busy < tonumber(most) and (not least or busy < least) and does_fetch(instance) then
        found, least = instance, busy
      end
      if busy == 0 and found == instance then break end
    end
  end
  return found
end

-- Hands a job to an instance, which claims the job for it.
local function hand(instance, key, seq, time, job, script, grants)
  redis.call('ZADD', CLAIMS .. instance, seq, key)
  redis.call('RPUSH', HANDED .. instance, key .. ' ' .. time .. ' ' .. #job .. ' ' .. #script .. '\n' .. job .. script .. grants)
end
