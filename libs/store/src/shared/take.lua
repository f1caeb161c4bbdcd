#!lua flags=allow-oom
-- Gives a lane a new owner: no epoch is used twice, even if the last one was forgotten.
-- KEYS = fence
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local epoch = math.max(tonumber(redis.call('HGET', KEYS.fence, 'epoch') or '0') + 1, now)
redis.call('HSET', KEYS.fence, 'epoch', string.format('%d', epoch))
return epoch
