-- Forgets attempts of a flow that is gone: at once those of whose end the coordinator has heard, others when it has. What waits
-- or runs goes on. What an old worker was given, or others may take, is kept for its time: they may still write it.
-- ARGV = coordinator refuse_secs
--
-- `refuse_secs` is how long late jobs are refused. Behind the arguments come job keys.
-- Gives the keys of those that are forgotten now.
use_reserve()
local forgotten = {}
for i = ARGV_NAMED + 1, #ARGV do
  local key = ARGV[i]
  local known = redis.call('HMGET', JOB .. key, 'coordinator', 'context', 'queue', 'legacy', 'claimed_by', 'job')
  local is_ours = known[1] and known[1] ~= '' and not is_of_another(known[1], ARGV.coordinator)
  if is_ours and known[2] and not (known[4] or is_old_worker(known[5]) or is_open(known[3] or '')) then
    if known[6] then
      redis.call('HSET', JOB .. key, 'forget', ARGV.refuse_secs)
    else
      forget_end(key, known[2], ARGV.refuse_secs)
      forgotten[#forgotten + 1] = key
    end
  end
end
return forgotten
