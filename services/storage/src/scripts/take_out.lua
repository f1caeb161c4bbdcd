-- Moves messages from the end of `msg_out` into the hold of a router, as far as they are still those that were seen there.
-- KEYS 4 msg_out, 5 msg_out_coordinator, 6 letters, 7 dead_letters, 8.. the messages at the end of the list, last first, with
--      `msg_out` itself in the place of what names none
-- ARGV 5 router, 6 end of the hold, 7 how many bytes are taken at once, then for each of them what stands in the list, then
--      the fields that are wanted
-- Gives for each that was moved its fields, or 0 for one that does not exist or is cared for already, or 1 for one that is
-- too large.
local no = closed()
if no then return no end
local count, taken, bytes, most = #KEYS - 7, {}, 0, tonumber(ARGV[7])
local wanted = {unpack(ARGV, 8 + count)}
for n = 1, count do
  local key, found = KEYS[7 + n], 0
  if redis.call('LINDEX', KEYS[4], -1) ~= ARGV[7 + n] then break end
  if key == ARGV[7 + n] and is_hash(key) then
    -- Anybody may push a key once more: what is settled stays so, and what is held is in one place.
    local is_settled = kept_in(key, KEYS[6])
      and (redis.call('HGET', key, 'status') ~= 'dispatched' or redis.call('ZSCORE', KEYS[7], key))
    if not is_settled and not redis.call('ZSCORE', KEYS[5], key) then
      local fields, size = fields_of(key, KEYS[6], most, wanted)
      if bytes > 0 and bytes + size > most then break end
      bytes = bytes + size
      redis.call('ZADD', KEYS[5], ARGV[6], key)
      redis.call('HSET', key, 'router', ARGV[5], 'updated_at', ARGV[3])
      found = fields
    end
  end
  redis.call('RPOP', KEYS[4])
  taken[n] = found
end
return taken
