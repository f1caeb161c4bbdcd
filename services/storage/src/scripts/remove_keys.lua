-- Removes a page of the keys of a context that is going, but for its record.
-- ARGV 5 the server that gave the cursor ('' at the beginning), 6 cursor, 7 pattern, 8 how many keys to look at
-- Gives the server, the next cursor and how many keys there were.
local no = closed(true)
if no then return no end
use_reserve()
if redis.call('HGET', KEYS[1], 'state') ~= 'deleting' then return refuse('CONTEXT_GONE', 'the context is in use') end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
-- Another server numbers its keys in another way.
local cursor = server == ARGV[5] and ARGV[6] or '0'
local page = redis.call('SCAN', cursor, 'MATCH', ARGV[7], 'COUNT', ARGV[8])
local found = 0
for _, key in ipairs(page[2]) do
  if key ~= KEYS[1] then found = found + redis.call('UNLINK', key) end
end
return {server, page[1], found}
