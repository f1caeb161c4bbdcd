-- Drops events and entries of the audit that are old enough, and marks how far the events have come by now.
-- KEYS 4 event_marks
-- ARGV 5 events that were made before this moment go, 6 entries of the audit that were made before it do, in milliseconds,
--      7 a new mark is made when the last one is from before this moment
-- Gives how many events went.
local no = closed()
if no then return no end
use_reserve()
local newest = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')
if not newest[2] or tonumber(newest[2]) < tonumber(ARGV[7]) then
  local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
  -- As long as nothing happens the first mark of a place counts: else what is before it would never be old enough.
  if last then redis.call('ZADD', KEYS[4], 'NX', ARGV[3], string.match(last[1], '^%d+')) end
end
redis.call('XTRIM', own('audit'), 'MINID', '~', ARGV[6])
local mark = redis.call('ZREVRANGEBYSCORE', KEYS[4], ARGV[5], '-inf', 'LIMIT', 0, 1)[1]
if not mark then return 0 end
-- The event at the mark stays: by the last one it is seen that a store has not gone back.
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. redis.call('ZSCORE', KEYS[4], mark))
return redis.call('XTRIM', KEYS[3], 'MINID', '~', mark)
