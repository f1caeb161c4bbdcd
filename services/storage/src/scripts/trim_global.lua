-- Drops events and entries of the audit that are old enough, and marks how far the events have come by now.
-- KEYS 3 event_marks, 4 audit
-- ARGV 4 events that were made before this moment go, 5 entries of the audit that were made before it do, in milliseconds,
--      6 a new mark is made when the last one is from before this moment
-- Gives how many events went.
use_reserve()
local newest = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')
if not newest[2] or tonumber(newest[2]) < tonumber(ARGV[6]) then
  local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
  -- As long as nothing happens the first mark of a place counts: else what is before it would never be old enough.
  if last then redis.call('ZADD', KEYS[3], 'NX', ARGV[2], string.match(last[1], '^%d+')) end
end
redis.call('XTRIM', KEYS[4], 'MINID', '~', ARGV[5])
local mark = redis.call('ZREVRANGEBYSCORE', KEYS[3], ARGV[4], '-inf', 'LIMIT', 0, 1)[1]
if not mark then return 0 end
-- The event at the mark stays: by the last one it is seen that a store has not gone back.
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. redis.call('ZSCORE', KEYS[3], mark))
return redis.call('XTRIM', KEYS[2], 'MINID', '~', mark)
