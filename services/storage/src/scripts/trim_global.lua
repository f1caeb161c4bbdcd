-- Drops events and audit records that are old enough, and marks how far the events have come by now.
-- KEYS = event_marks audit
-- ARGV = events_from audit_from_millis mark_from
--
-- Events that were made before `events_from` are dropped, and audit records that were made before `audit_from_millis`. A new mark
-- is made when the last one is from before `mark_from`.
-- Returns how many events were dropped.
use_reserve()
local newest = redis.call('ZRANGE', KEYS.event_marks, -1, -1, 'WITHSCORES')
if not newest[2] or tonumber(newest[2]) < tonumber(ARGV.mark_from) then
  local last = redis.call('XREVRANGE', KEYS.events, '+', '-', 'COUNT', 1)[1]
  -- Keeps the first mark at a position while nothing happens: else what is before it would never be old enough.
  if last then redis.call('ZADD', KEYS.event_marks, 'NX', ARGV.now, string.match(last[1], '^%d+')) end
end
redis.call('XTRIM', KEYS.audit, 'MINID', '~', ARGV.audit_from_millis)
local mark = redis.call('ZREVRANGEBYSCORE', KEYS.event_marks, ARGV.events_from, '-inf', 'LIMIT', 0, 1)[1]
if not mark then return 0 end
-- Keeps the event at the mark: the last event proves that the store has not gone back.
redis.call('ZREMRANGEBYSCORE', KEYS.event_marks, '-inf', '(' .. redis.call('ZSCORE', KEYS.event_marks, mark))
return redis.call('XTRIM', KEYS.events, 'MINID', '~', mark)
