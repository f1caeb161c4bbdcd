-- Prolongs what a router holds, or moves messages whose hold has ended to it, and reads them.
-- KEYS 4 msg_out_coordinator, 5 letters, 6.. messages
-- ARGV 5 router, 6 end of the new hold, 7 now in Unix seconds, '' when only what the router holds already is meant, 8 how
--      many bytes are read at once, 9.. the fields that are wanted
-- Gives for each message its fields, or 0 for one that is not taken, or 1 for one that is too large; fewer than were asked
-- for when those are too many bytes, but one at least.
local no = closed()
if no then return no end
local taken, bytes, most = {}, 0, tonumber(ARGV[8])
local wanted = {unpack(ARGV, 9)}
for k = 6, #KEYS do
  local key, found = KEYS[k], 0
  local score = redis.call('ZSCORE', KEYS[4], key)
  if score and not is_hash(key) then
    redis.call('ZREM', KEYS[4], key)
  elseif score then
    local is_meant = ARGV[7] == '' and redis.call('HGET', key, 'router') == ARGV[5]
    if is_meant or ARGV[7] ~= '' and tonumber(score) <= tonumber(ARGV[7]) then
      local fields, size = fields_of(key, KEYS[5], most, wanted)
      if bytes > 0 and bytes + size > most then break end
      bytes = bytes + size
      redis.call('HSET', key, 'router', ARGV[5], 'updated_at', ARGV[3])
      redis.call('ZADD', KEYS[4], ARGV[6], key)
      found = fields
    end
  end
  taken[k - 5] = found
end
return taken
