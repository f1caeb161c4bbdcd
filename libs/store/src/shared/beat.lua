#!lua flags=allow-oom
-- A replica says that it lives, and hears who else does. A beat changes no row: what it answers as revision rises with those only.
-- KEYS: 1 replicas  2 fence beside the lanes
-- ARGV: 1 name  2 session  3 how long it lives from now on, in milliseconds; 0: no longer  4 what it says of itself
--       5 `1` where it takes its name from another session
-- Gives the time, the revision, whether another session has the name, then names, sessions and words of those that live.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local name, session, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local living, is_displaced = {}, 0
local all = redis.call('HGETALL', KEYS[1])
for at = 1, #all, 2 do
  local until_when, whose, words = string.match(all[at + 1], '^(%d+):(%x+):(.*)$')
  if not until_when or tonumber(until_when) <= now then
    redis.call('HDEL', KEYS[1], all[at])
  elseif all[at] ~= name then
    living[#living + 1] = {all[at], whose, words}
  elseif whose ~= session and ARGV[5] ~= '1' then
    is_displaced = 1
    living[#living + 1] = {all[at], whose, words}
  end
end
if is_displaced == 0 then
  if ttl > 0 then
    redis.call('HSET', KEYS[1], name, string.format('%d:%s:%s', now + ttl, session, ARGV[4]))
    living[#living + 1] = {name, session, ARGV[4]}
  else
    redis.call('HDEL', KEYS[1], name)
  end
end
local answer = {now, tonumber(redis.call('HGET', KEYS[2], 'revision') or '0'), is_displaced}
for _, one in ipairs(living) do
  for _, part in ipairs(one) do answer[#answer + 1] = part end
end
return answer
