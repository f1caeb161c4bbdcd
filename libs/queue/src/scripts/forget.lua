-- Forgets attempts of a flow that is gone: at once those whose end the coordinator knows, others when it does. Waiting and
-- running ones go on. Jobs that old workers or other takers may have are kept for their time: they may still be written to.
-- ARGV = coordinator refuse_secs
--
-- `refuse_secs` is how long late jobs are refused. After the arguments follow job keys.
-- Returns the keys of the jobs that are forgotten now.
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
