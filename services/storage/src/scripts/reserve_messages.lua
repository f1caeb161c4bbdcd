-- Reserves message ids of a caller.
-- ARGV = caller count
--
-- Returns the first of them.
local no = closed()
if no then return no end
local last = last_message(ARGV.caller)
local reserved = last + tonumber(ARGV.count)
if reserved > ID_MAX then return refuse('IDS_EXHAUSTED', 'the caller has no message ids left') end
redis.call('HSET', KEYS.ids, 'message:' .. ARGV.caller, string.format('%.0f', reserved))
return last + 1
