-- Reserves message ids of a caller.
-- ARGV 5 caller, 6 how many
-- Gives the first of them.
local no = closed()
if no then return no end
local last = last_message(ARGV[5])
local reserved = last + tonumber(ARGV[6])
if reserved > ID_MAX then return refuse('IDS_EXHAUSTED', 'the caller has no message ids left') end
redis.call('HSET', KEYS[2], 'message:' .. ARGV[5], string.format('%.0f', reserved))
return last + 1
