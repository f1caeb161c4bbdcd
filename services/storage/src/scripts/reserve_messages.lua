-- Reserves message ids of a caller.
-- ARGV 5 caller, 6 how many
-- Gives the first of them.
local no = closed()
if no then return no end
local last = tonumber(redis.call('HGET', KEYS[2], 'message:' .. ARGV[5]) or '0')
if last + tonumber(ARGV[6]) > ID_MAX then return refuse('IDS_EXHAUSTED', 'the caller has no message ids left') end
redis.call('HINCRBY', KEYS[2], 'message:' .. ARGV[5], ARGV[6])
return last + 1
