-- Acknowledges events that the coordinator has received.
-- KEYS = done
-- ARGV = group keep_secs ends_max
--
-- `group` is a consumer group; `keep_secs` is how long ended jobs are kept, and `ends_max` how many of one context. After the
-- arguments follow pairs of an entry's id and the key of the job whose last event it is, '' for none.
-- Returns the keys of the jobs that are forgotten now.
use_reserve()
local forgotten, entries, came = {}, {}, {}

-- Removes ended jobs of a context beyond `ends_max`, those that expire first: at most twice as many as came.
local function drop_oldest_ends(context, count)
  local jobs = JOBS .. context
  local beyond = redis.call('ZCOUNT', jobs, '-inf', '(+inf') - tonumber(ARGV.ends_max)
  if beyond <= 0 then return end
  for _, key in ipairs(redis.call('ZRANGE', jobs, 0, math.min(beyond, 2 * count) - 1)) do
    local known = redis.call('HMGET', JOB .. key, 'queue', 'legacy', 'claimed_by')
    -- Keeps jobs that others may still write to: a late write would make a record that never expires.
    if not (known[2] or is_old_worker(known[3]) or is_open(known[1] or '')) then
      redis.call('UNLINK', JOB .. key)
      redis.call('ZREM', jobs, key)
    end
  end
end

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
      came[known[1]] = (came[known[1]] or 0) + 1
    end
  end
end
for context, count in pairs(came) do drop_oldest_ends(context, count) end
for from = 1, #entries, 1000 do
  local last = math.min(from + 999, #entries)
  redis.call('XACK', KEYS.done, ARGV.group, unpack(entries, from, last))
  redis.call('XDEL', KEYS.done, unpack(entries, from, last))
end
return forgotten
