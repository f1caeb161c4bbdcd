-- Turns that contexts take when their jobs wait for instances of the same type (decision 125). While only one context waits, there
-- are just its queues.

-- Puts every job that waits for instances of a type in its context's line. Returns true if other contexts wait too.
local function form_lines(kind, context)
  local lines, of_others = {}, false
  for _, queue in ipairs(redis.call('SMEMBERS', QUEUES)) do
    local from, page = 0, {}
    repeat
      page = type_of(queue) == kind and redis.call('ZRANGE', UNCLAIMED .. queue, from, from + 999, 'WITHSCORES') or {}
      for i = 1, #page, 2 do
        local owner = context_of(page[i])
        local line = owner .. ':' .. queue
        of_others = of_others or owner ~= context
        lines[line] = lines[line] or {owner, queue, {}}
        local waiting = lines[line][3]
        waiting[#waiting + 1], waiting[#waiting + 2] = page[i + 1], page[i]
      end
      from = from + 1000
    until #page < 2000
  end
  if not of_others then return false end
  for line, of in pairs(lines) do
    for from = 1, #of[3], 1000 do
      redis.call('ZADD', LINE .. line, unpack(of[3], from, math.min(from + 999, #of[3])))
    end
    redis.call('SADD', LINES .. kind .. ':' .. of[1], of[2])
    -- Gives the contexts that waited before a turn already taken.
    redis.call('ZADD', TURNS .. kind, 1, of[1])
  end
  return true
end

-- Puts a job that begins to wait in the line of its context, if jobs of other contexts wait too. The job is not in
-- `UNCLAIMED` yet.
local function stand_in_line(key, queue, seq)
  local kind, context = type_of(queue), context_of(key)
  hold_takers(kind)
  local alone = redis.call('HGET', ALONE, kind)
  if alone == context then return end
  if alone ~= IN_TURNS then
    local are_several = form_lines(kind, context)
    redis.call('HSET', ALONE, kind, are_several and IN_TURNS or context)
    if not are_several then return end
  end
  redis.call('ZADD', LINE .. context .. ':' .. queue, seq, key)
  redis.call('SADD', LINES .. kind .. ':' .. context, queue)
  -- A newcomer begins where the last turn was.
  redis.call('ZADD', TURNS .. kind, 'NX', redis.call('HGET', ALONE, last_turn(kind)) or 0, context)
end
