-- Tells again where a job stands.
-- ARGV = key
tell_again(ARGV.key)
return redis.status_reply('OK')
