#!lua flags=allow-oom
-- Scans rows by key. The index drops rows that have expired.
-- KEYS = index
-- ARGV = prefix from to count bytes
--
-- `prefix` starts every key, `from` and `to` are bounds. `count` is the maximum number, `bytes` the approximate size.
-- Returns the last key that was read, or nothing at the end, then keys and rows in turn.
local keys = redis.call('ZRANGEBYLEX', KEYS.index, ARGV.from, ARGV.to, 'LIMIT', 0, ARGV.count)
local bytes = 0
local answer = {#keys == tonumber(ARGV.count) and keys[#keys] or false}
for _, key in ipairs(keys) do
  local row = redis.call('GET', ARGV.prefix .. key)
  if row then
    answer[#answer + 1] = key
    answer[#answer + 1] = row
    bytes = bytes + #row
    if bytes >= tonumber(ARGV.bytes) then
      answer[1] = key
      break
    end
  else
    redis.call('ZREM', KEYS.index, key)
  end
end
return answer
