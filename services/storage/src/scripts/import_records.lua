-- Writes the records of a frame into a context that is being imported.
-- ARGV = frame digest
--
-- After the arguments follow for each record its key without the beginning that a layout adds, its kind, 1 if it continues an earlier
-- one, the milliseconds until it expires or '', the number of its values, and these; for a stream the number of its entries, and
-- for each its id, the number of its values, and these.
-- Returns the number of the last frame that is taken; that is another one when this frame was taken before.
local no = not_importing()
if no then return no end
local frame, taken = tonumber(ARGV.frame), tonumber(redis.call('HGET', KEYS.context, 'import_frames'))
if frame <= taken then return taken end
if frame ~= taken + 1 then return refuse('IMPORT_GONE', 'frame ' .. (taken + 1) .. ' is missing') end

local WRITES = {hash = 'HSET', set = 'SADD', sorted_set = 'ZADD', list = 'RPUSH', text = 'SET'}
-- Writes values in parts of an even number that one command takes.
local PART = 1000
local function write(key, kind, from, count)
  for first = from, from + count - 1, PART do
    redis.call(WRITES[kind], key, unpack(ARGV, first, math.min(first + PART, from + count) - 1))
  end
  return from + count
end

local function write_entries(key, from, count)
  for _ = 1, count do
    local last = from + 1 + tonumber(ARGV[from + 1])
    redis.call('XADD', key, ARGV[from], unpack(ARGV, from + 2, last))
    from = last + 1
  end
  return from
end

local at = ARGV_NAMED + 1
while at <= #ARGV do
  local key, kind, continued, millis, count = own(ARGV[at]), unpack(ARGV, at + 1, at + 4)
  if continued ~= '1' and key ~= KEYS.context then redis.call('UNLINK', key) end
  if kind == 'stream' then
    at = write_entries(key, at + 5, tonumber(count))
  else
    at = write(key, kind, at + 5, tonumber(count))
  end
  if millis ~= '' then redis.call('PEXPIRE', key, millis) end
end
redis.call('HSET', KEYS.context, 'import_frames', frame, 'import_digest', ARGV.digest)
return frame
