-- ARGV: 1 job key
tell_again(ARGV[1])
return redis.status_reply('OK')
