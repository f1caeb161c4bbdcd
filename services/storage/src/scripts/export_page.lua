-- Reads a page of the names of a context's keys, and keeps the context frozen.
-- ARGV = snapshot frozen_until server cursor pattern count
--
-- `server` is the one that gave the cursor, '' at the beginning; `count` is the number of keys to look at.
-- Returns the server, the next cursor, and for each key its name, its type, how much it has, and how many milliseconds it has left, -1
-- without end.
local no = closed(false, true)
if no then return no end
no = keep(ARGV.snapshot, ARGV.frozen_until)
if no then return no end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
-- Starts over on another server, which numbers its keys in another way.
local cursor = server == ARGV.server and ARGV.cursor or '0'
local page = redis.call('SCAN', cursor, 'MATCH', ARGV.pattern, 'COUNT', ARGV.count)
local SIZES = {hash = 'HLEN', set = 'SCARD', zset = 'ZCARD', list = 'LLEN', string = 'STRLEN', stream = 'XLEN'}
local answer = {server, page[1]}
for _, key in ipairs(page[2]) do
  local kind = redis.call('TYPE', key).ok
  local size = SIZES[kind] and redis.call(SIZES[kind], key) or 0
  for _, part in ipairs({key, kind, size, redis.call('PTTL', key)}) do answer[#answer + 1] = part end
end
return answer
