-- Moves messages from the end of `out` into the hold of a router, if they are still the ones that were seen there.
-- KEYS = out held letters dead_letters
-- ARGV = router hold_end bytes_max
--
-- At most `bytes_max` bytes are taken at once. After the keys follow the messages at the end of the list, last first, with `out`
-- itself in the place of an entry that names none. After the arguments follow for each its entry in the list, and the wanted
-- fields.
-- Returns for each moved message its fields, or 0 for one that does not exist or is held or settled already, or 1 for one that is
-- too large.
local no = closed()
if no then return no end
local count, taken, bytes, most = #KEYS - KEYS_NAMED, {}, 0, tonumber(ARGV.bytes_max)
local wanted = {unpack(ARGV, ARGV_NAMED + count + 1)}
for n = 1, count do
  local key, found = KEYS[KEYS_NAMED + n], 0
  if redis.call('LINDEX', KEYS.out, -1) ~= ARGV[ARGV_NAMED + n] then break end
  if key == ARGV[ARGV_NAMED + n] and is_hash(key) then
    -- Skips messages that are settled or held: any program may push a key again.
    local is_settled = kept_in(key, KEYS.letters)
      and (redis.call('HGET', key, 'status') ~= 'dispatched' or redis.call('ZSCORE', KEYS.dead_letters, key))
    if not is_settled and not redis.call('ZSCORE', KEYS.held, key) then
      local fields, size = fields_of(key, KEYS.letters, most, wanted)
      if bytes > 0 and bytes + size > most then break end
      bytes = bytes + size
      redis.call('ZADD', KEYS.held, ARGV.hold_end, key)
      redis.call('HSET', key, 'router', ARGV.router, 'updated_at', ARGV.now)
      found = fields
    end
  end
  redis.call('RPOP', KEYS.out)
  taken[n] = found
end
return taken
