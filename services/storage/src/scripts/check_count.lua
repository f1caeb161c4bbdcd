-- Compares a count of what there is with the counter of it.
-- KEYS = counters
-- ARGV = field seen counted revision
--
-- `counted` is the number that was counted while the counter was `seen`, '' for none, and the change counter of the context was at
-- `revision`.
-- Returns the findings; 0 when either has changed since.
local no = closed(false, not REPAIRS)
if no then return no end
local stored = redis.call('HGET', KEYS.counters, ARGV.field) or ''
if (redis.call('HGET', KEYS.ids, 'revision') or '0') ~= ARGV.revision or stored ~= ARGV.seen then return 0 end
if tonumber(stored == '' and '0' or stored) == tonumber(ARGV.counted) then return findings end
local problem = 'counter ' .. ARGV.field .. ' is ' .. (stored == '' and 'missing' or string.sub(stored, 1, 40)) .. ', and '
  .. ARGV.counted .. ' were counted'
if report('COUNTER_WRONG', bare(KEYS.counters), problem, 'the counter is set to what was counted') then
  -- An empty inbox has no counter.
  if KEYS.counters ~= KEYS.ids and ARGV.counted == '0' then
    redis.call('HDEL', KEYS.counters, ARGV.field)
  else
    redis.call('HSET', KEYS.counters, ARGV.field, ARGV.counted)
  end
end
return findings
