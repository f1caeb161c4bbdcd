-- Removes finished messages beyond the bounds of what is kept, the oldest first.
-- KEYS = letters_done
-- ARGV = settled_by messages_max most
--
-- A message goes that was finished by the change `settled_by`, or while there are more than `messages_max`; `most` of them at
-- once.
-- Returns how many were removed.
local no = closed()
if no then return no end
use_reserve()
local removed, revision = 0, nil
while removed < tonumber(ARGV.most) do
  local oldest = redis.call('ZRANGE', KEYS.letters_done, 0, 0, 'WITHSCORES')
  local is_old = oldest[2] and tonumber(oldest[2]) <= tonumber(ARGV.settled_by)
  if not is_old and redis.call('ZCARD', KEYS.letters_done) <= tonumber(ARGV.messages_max) then break end
  revision = revision or raise()
  drop_oldest_done(revision)
  removed = removed + 1
end
if removed > 0 then hint('') end
return removed
