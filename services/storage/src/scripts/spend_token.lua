-- Uses up a token. The entry takes memory, yet little, for minutes, and no more than an actor may call: without the reserve no actor
-- with a token could free anything.
-- KEYS = token
-- ARGV = keep_secs
--
-- Returns 1; 0 when it was used up before.
if redis.call('EXISTS', KEYS.token) == 1 then return 0 end
use_reserve()
redis.call('SET', KEYS.token, '', 'EX', ARGV.keep_secs)
return 1
