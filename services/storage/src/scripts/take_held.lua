-- Prolongs the holds of a router, or moves messages whose hold has ended to it, and reads them.
-- KEYS = held letters
-- ARGV = router hold_end ended_until bytes_max
--
-- `hold_end` is that of the new hold. The hold of others has to have ended at `ended_until`, '' when only the router's own messages
-- are meant. At most `bytes_max` bytes are read at once. After the keys follow the messages, after the arguments the
-- wanted fields.
-- Returns for each message its fields, or 0 for one that is not taken, or 1 for one that is too large; fewer than requested
-- when those are too many bytes, but one at least.
local no = closed()
if no then return no end
local taken, bytes, most = {}, 0, tonumber(ARGV.bytes_max)
local wanted = {unpack(ARGV, ARGV_NAMED + 1)}
for k = KEYS_NAMED + 1, #KEYS do
  local key, found = KEYS[k], 0
  local score = redis.call('ZSCORE', KEYS.held, key)
  if score and not is_hash(key) then
    redis.call('ZREM', KEYS.held, key)
  elseif score then
    local is_meant = ARGV.ended_until == '' and redis.call('HGET', key, 'router') == ARGV.router
    if is_meant or ARGV.ended_until ~= '' and tonumber(score) <= tonumber(ARGV.ended_until) then
      local fields, size = fields_of(key, KEYS.letters, most, wanted)
      if bytes > 0 and bytes + size > most then break end
      bytes = bytes + size
      redis.call('HSET', key, 'router', ARGV.router, 'updated_at', ARGV.now)
      redis.call('ZADD', KEYS.held, ARGV.hold_end, key)
      found = fields
    end
  end
  taken[k - KEYS_NAMED] = found
end
return taken
