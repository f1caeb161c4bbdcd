-- Returns the entries at the head of an old queue, or of the list of foreign entries, each with what its dispatcher wrote.
-- KEYS = list
-- ARGV = count script_bytes_max variables_bytes_max
--
-- `list` is an old queue, or hero:foreign; `count` is the number of entries to look at.
local found = {}
local entries = redis.pcall('LRANGE', KEYS.list, 0, ARGV.count - 1)
if entries.err then return found end
for _, entry in ipairs(entries) do
  local hash
  if KEYS.list == FOREIGN then
    local id = foreign_id(string.match(entry, '^%S+ (.*)$') or '')
    hash = id and JOB .. id
  elseif string.sub(KEYS.list, 1, 6) == 'queue:' then
    hash = string.match(entry, '^job:%d+:%d+$')
  else
    hash = #entry <= 128 and string.match(entry, '^[%w_.@-]+$') and JOB .. entry
  end
  local kind = hash and redis.call('TYPE', hash).ok or 'none'
  if kind == 'hash' then
    local fits = redis.call('HSTRLEN', hash, 'script') <= tonumber(ARGV.script_bytes_max)
      and redis.call('HSTRLEN', hash, 'env_vars') <= tonumber(ARGV.variables_bytes_max)
    local j = redis.call('HMGET', hash, 'script_type', 'timeout', 'caller_id', 'hash', fits and 'script' or 'none',
      fits and 'env_vars' or 'none')
    found[#found + 1] = {entry, fits and 'job' or 'large', j[1] or '', j[2] or '', j[3] or '', j[4] or '', j[5] or '',
      j[6] or ''}
  else
    found[#found + 1] = {entry, 'unknown', '', '', '', '', '', ''}
  end
end
return found
