-- Ends a job of an old dispatcher that cannot be run, if its entry is still there.
-- KEYS: 1 <old queue>   ARGV: 1 entry  2 its hash, or nothing  3 its id  4 why
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' then answer_old(ARGV[2], ARGV[3], 'error', '', '{}', ARGV[4]) end
return 1
