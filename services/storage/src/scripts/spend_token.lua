-- Uses up a token. That takes memory, yet little, for minutes, and not more than an actor may call: without it nobody who shows
-- one could free anything.
-- KEYS = token
-- ARGV = keep_secs
--
-- Gives 1; 0 when it was used up before.
if redis.call('EXISTS', KEYS.token) == 1 then return 0 end
use_reserve()
redis.call('SET', KEYS.token, '', 'EX', ARGV.keep_secs)
return 1
