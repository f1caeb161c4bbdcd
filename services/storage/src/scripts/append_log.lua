-- Appends to the stored part of an attempt's output.
-- KEYS = flow nodes log
-- ARGV = flow_uid flow job attempt bytes_max runner times_max
--
-- At most `bytes_max` bytes of the output are kept, and `times_max` times of printing. `runner` is the runner record of the
-- supervisor that sent them, or 0. After the arguments follow for each piece its offset, when it was printed in Unix milliseconds or
-- 0, and its bytes.
-- Returns where the output ends now.
-- Works while the context is exported: what scripts print comes at its own pace, and an export has it up to some point.
local no = closed(false, true)
if no then return no end
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'deleting')
if flow[1] ~= ARGV.flow_uid or flow[2] then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
local node = redis.call('HGET', KEYS.nodes, ARGV.job)
if not node then return refuse('JOB_GONE', 'job ' .. ARGV.job) end
-- Refuses output of attempts that the node never had: nothing would ever remove it.
if tonumber(ARGV.attempt) > (tonumber(string.match(node, '"attempt":(%d+)')) or 1) then
  return refuse('JOB_GONE', 'attempt ' .. ARGV.attempt .. ' of job ' .. ARGV.job)
end
local log = redis.call('HMGET', KEYS.log, 'data', 'start', 'end', 'times')
local data, from, till = log[1] or '', tonumber(log[2] or '0'), tonumber(log[3] or '0')
local before, first = till, from
-- Times of printing, by first byte, also for bytes that are stored elsewhere.
local times = {}
for byte, millis in string.gmatch(log[4] or '', '(%d+):(%d+)') do times[#times + 1] = {tonumber(byte), millis} end
local function printed(byte, millis)
  if millis == '0' then return end
  local at = #times
  while at > 0 and times[at][1] > byte do at = at - 1 end
  if at == 0 or times[at][1] < byte then table.insert(times, at + 1, {byte, millis}) end
end
for a = ARGV_NAMED + 1, #ARGV, 3 do
  local offset, millis, piece = tonumber(ARGV[a]), ARGV[a + 1], ARGV[a + 2]
  if offset > till then
    -- Drops earlier output when the piece before this one is missing: the stored output stays contiguous.
    data, from, till = '', offset, offset
  end
  if offset < from and offset + #piece >= from then
    -- Prepends a piece that was overtaken by the piece after it.
    data, from = string.sub(piece, 1, from - offset) .. data, offset
    printed(offset, millis)
  end
  if offset + #piece > till then
    data = data .. string.sub(piece, till - offset + 1)
    printed(till, millis)
    till = offset + #piece
  end
end
local keep = tonumber(ARGV.bytes_max)
if #data > keep then
  from = from + #data - keep
  data = string.sub(data, -keep)
end
if till == before and from == first then return till end

local revision = raise()
local end_text = string.format('%.0f', till)
redis.call('HSET', KEYS.log, 'data', data, 'start', string.format('%.0f', from), 'end', end_text)
if #times > 0 then
  -- Thins out old times, which may be less exact: of the older three quarters every second one is dropped.
  local keep_times, shown = tonumber(ARGV.times_max), {}
  local older = #times > keep_times and math.floor(#times * 3 / 4) or 0
  for at, time in ipairs(times) do
    if at > older or at % 2 == 1 then shown[#shown + 1] = string.format('%.0f:%s', time[1], time[2]) end
  end
  redis.call('HSET', KEYS.log, 'times', table.concat(shown, ' '))
end
if ARGV.runner ~= '0' then redis.call('HSET', KEYS.log, 'runner', ARGV.runner) end
emit(revision, '{"kind":"log","flow_id":' .. ARGV.flow .. ',"job_id":' .. ARGV.job .. ',"attempt":' .. ARGV.attempt
  .. ',"end":' .. end_text .. '}')
hint('')
return till
