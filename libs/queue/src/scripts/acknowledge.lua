-- The coordinator has these events.
-- KEYS: 1 hero:done   ARGV: 1 consumer group  2 seconds to keep ended jobs  3… pairs of entry id and ended
--       job's key, or nothing
-- Gives the keys of those that are forgotten now.
use_reserve()
local forgotten, entries = {}, {}
for i = 3, #ARGV, 2 do
  entries[#entries + 1] = ARGV[i]
  local key = ARGV[i + 1]
  if key ~= '' then
    local known = redis.call('HMGET', JOB .. key, 'context', 'forget')
    if known[1] and known[2] then
      forget_end(key, known[1], known[2])
      forgotten[#forgotten + 1] = key
    elseif known[1] then
      keep_end(key, known[1], ARGV[2])
    end
  end
end
for from = 1, #entries, 1000 do
  local last = math.min(from + 999, #entries)
  redis.call('XACK', KEYS[1], ARGV[1], unpack(entries, from, last))
  redis.call('XDEL', KEYS[1], unpack(entries, from, last))
end
return forgotten
