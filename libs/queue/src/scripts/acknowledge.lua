-- Acknowledges events that the coordinator has received.
-- KEYS = done
-- ARGV = group keep_secs
--
-- `group` is a consumer group; `keep_secs` is how long ended jobs are kept. After the arguments follow pairs of an entry's id and
-- the key of the job whose last event it is, '' for none.
-- Returns the keys of the jobs that are forgotten now.
use_reserve()
local forgotten, entries = {}, {}
for i = ARGV_NAMED + 1, #ARGV, 2 do
  entries[#entries + 1] = ARGV[i]
  local key = ARGV[i + 1]
  if key ~= '' then
    local known = redis.call('HMGET', JOB .. key, 'context', 'forget')
    if known[1] and known[2] then
      forget_end(key, known[1], known[2])
      forgotten[#forgotten + 1] = key
    elseif known[1] then
      keep_end(key, known[1], ARGV.keep_secs)
    end
  end
end
for from = 1, #entries, 1000 do
  local last = math.min(from + 999, #entries)
  redis.call('XACK', KEYS.done, ARGV.group, unpack(entries, from, last))
  redis.call('XDEL', KEYS.done, unpack(entries, from, last))
end
return forgotten
