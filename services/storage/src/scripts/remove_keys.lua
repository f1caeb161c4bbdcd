-- Removes a page of the keys of a context that is being removed, except its record.
-- ARGV = server cursor pattern count
--
-- `server` is the one that gave the cursor, '' at the beginning; `count` is the number of keys to look at.
-- Returns the server, the next cursor and how many keys there were.
local no = closed(true)
if no then return no end
use_reserve()
if redis.call('HGET', KEYS.context, 'state') ~= 'deleting' then return refuse('CONTEXT_GONE', 'the context is in use') end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
-- Starts over on another server, which numbers its keys in another way.
local cursor = server == ARGV.server and ARGV.cursor or '0'
local page = redis.call('SCAN', cursor, 'MATCH', ARGV.pattern, 'COUNT', ARGV.count)
local found = 0
for _, key in ipairs(page[2]) do
  if key ~= KEYS.context then found = found + redis.call('UNLINK', key) end
end
return {server, page[1], found}
