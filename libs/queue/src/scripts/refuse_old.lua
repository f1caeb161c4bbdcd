-- Ends a job of an old dispatcher that cannot run, if its entry is still there.
-- KEYS = list
-- ARGV = entry old_hash old_id why
--
-- `list` is an old queue, or hero:foreign. `old_hash` is '' if the job is unknown.
if redis.call('LREM', KEYS.list, 1, ARGV.entry) == 0 then return 0 end
if ARGV.old_hash ~= '' then answer_old(ARGV.old_hash, ARGV.old_id, 'error', '', '{}', ARGV.why) end
return 1
