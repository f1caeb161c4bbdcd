-- Uses up a token. That takes memory, yet little, for minutes, and not more than an actor may call: without it nobody who shows
-- one could free anything.
-- KEYS 3 token
-- ARGV 4 seconds to remember it
-- Gives 1; 0 when it was used up before.
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
use_reserve()
redis.call('SET', KEYS[3], '', 'EX', ARGV[4])
return 1
