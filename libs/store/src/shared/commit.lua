-- Applies one commit of a lane: checks first, writes last, since Redis has no rollback.
-- KEYS = fence index
-- ARGV = prefix epoch unscanned conditions
--
-- `prefix` starts every key, `unscanned` lists the tables that are not scanned, each between spaces; `conditions` is the
-- number of conditions. The remaining arguments are the conditions: `a` key, or `r` key revision; then the changes: `p` key
-- value, `u` key value end, `d` key, `n` key number.
local prefix, unscanned = ARGV.prefix, ARGV.unscanned
local fence = redis.call('HGET', KEYS.fence, 'epoch') or '0'
if fence ~= ARGV.epoch then return {'fenced', fence} end

local at = ARGV_NAMED + 1
for _ = 1, tonumber(ARGV.conditions) do
  local key = ARGV[at + 1]
  local found = string.match(redis.call('GETRANGE', prefix .. key, 0, 20), '^(%d+):') or '0'
  if ARGV[at] == 'a' then
    if found ~= '0' then return {'exists', key} end
    at = at + 2
  else
    if found ~= ARGV[at + 2] then return {'conflict', key, found} end
    at = at + 3
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- New rows, in the order in which they are first named: a value, or false for none.
local order, rows, ends = {}, {}, {}
local function set(key, value, until_when)
  if rows[key] == nil then order[#order + 1] = key end
  rows[key], ends[key] = value, until_when
end
local function current(key)
  if rows[key] ~= nil then return rows[key] end
  local row = redis.call('GET', prefix .. key)
  return row and string.match(row, '^%d+:(.*)$')
end
while ARGV[at] do
  local kind, key = ARGV[at], ARGV[at + 1]
  if kind == 'p' then
    set(key, ARGV[at + 2], nil)
    at = at + 3
  elseif kind == 'u' then
    -- Treats a row that has expired already as absent.
    if tonumber(ARGV[at + 3]) <= now then set(key, false) else set(key, ARGV[at + 2], ARGV[at + 3]) end
    at = at + 4
  elseif kind == 'd' then
    set(key, false)
    at = at + 2
  else
    local before = current(key)
    if before and not (#before == 20 and string.match(before, '^%d+$')) then
      return redis.error_reply('DAMAGED a row that is raised is no number')
    end
    -- Numbers of twenty digits sort as their texts.
    if not before or before < ARGV[at + 2] then set(key, ARGV[at + 2], nil) end
    at = at + 3
  end
end

local revision = redis.call('HINCRBY', KEYS.fence, 'revision', 1)
local head = string.format('%d:', revision)
for _, key in ipairs(order) do
  local value = rows[key]
  local is_scanned = not string.find(unscanned, ' ' .. string.match(key, '^[^:]*') .. ' ', 1, true)
  if value then
    if ends[key] then
      redis.call('SET', prefix .. key, head .. value, 'PXAT', ends[key])
    else
      redis.call('SET', prefix .. key, head .. value)
    end
    if is_scanned then redis.call('ZADD', KEYS.index, 0, key) end
  else
    redis.call('DEL', prefix .. key)
    if is_scanned then redis.call('ZREM', KEYS.index, key) end
  end
end
return {'committed', revision}
