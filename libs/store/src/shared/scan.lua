#!lua flags=allow-oom
-- Rows by their keys. The index forgets those that have ended.
-- KEYS: 1 index   ARGV: 1 what keys begin with  2 first bound  3 last bound  4 how many at most
--       5 how many bytes, about
-- Gives the last key that was looked at, or nothing at the end, then keys and rows in turn.
local keys = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])
local bytes = 0
local answer = {#keys == tonumber(ARGV[4]) and keys[#keys] or false}
for _, key in ipairs(keys) do
  local row = redis.call('GET', ARGV[1] .. key)
  if row then
    answer[#answer + 1] = key
    answer[#answer + 1] = row
    bytes = bytes + #row
    if bytes >= tonumber(ARGV[5]) then
      answer[1] = key
      break
    end
  else
    redis.call('ZREM', KEYS[1], key)
  end
end
return answer
