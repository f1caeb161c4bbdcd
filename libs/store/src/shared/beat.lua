#!lua flags=allow-oom
-- Renews a replica's heartbeat and lists the live replicas. A heartbeat changes no row: the returned revision rises with rows only.
-- KEYS = replicas fence
-- ARGV = name session live_millis announcement is_takeover
--
-- `fence` is the fence of the rows outside the lanes. The replica lives for `live_millis` from now on, or not at all with
-- 0; `announcement` is its description of itself. `is_takeover` takes the name from another session.
-- Returns the time, the revision, 1 if another session has the name, then names, sessions and announcements of the live replicas.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local name, session, ttl = ARGV.name, ARGV.session, tonumber(ARGV.live_millis)
local living, is_displaced = {}, 0
local all = redis.call('HGETALL', KEYS.replicas)
for at = 1, #all, 2 do
  local until_when, whose, announcement = string.match(all[at + 1], '^(%d+):(%x+):(.*)$')
  if not until_when or tonumber(until_when) <= now then
    redis.call('HDEL', KEYS.replicas, all[at])
  elseif all[at] ~= name then
    living[#living + 1] = {all[at], whose, announcement}
  elseif whose ~= session and ARGV.is_takeover ~= '1' then
    is_displaced = 1
    living[#living + 1] = {all[at], whose, announcement}
  end
end
if is_displaced == 0 then
  if ttl > 0 then
    redis.call('HSET', KEYS.replicas, name, string.format('%d:%s:%s', now + ttl, session, ARGV.announcement))
    living[#living + 1] = {name, session, ARGV.announcement}
  else
    redis.call('HDEL', KEYS.replicas, name)
  end
end
local answer = {now, tonumber(redis.call('HGET', KEYS.fence, 'revision') or '0'), is_displaced}
for _, one in ipairs(living) do
  for _, part in ipairs(one) do answer[#answer + 1] = part end
end
return answer
