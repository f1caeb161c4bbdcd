-- Repeats the state of a job as an event.
-- ARGV = key
tell_again(ARGV.key)
return redis.status_reply('OK')
