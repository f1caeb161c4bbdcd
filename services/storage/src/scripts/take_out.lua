-- Moves messages from the end of `msg_out` into the hold of a router, as far as they are still those that were seen there.
-- KEYS 4 msg_out, 5 msg_out_coordinator, 6.. the messages at the end of the list, last first
-- ARGV 5 router, 6 end of the hold, 7.. the fields that are wanted
-- Gives for each message that was moved its fields, or 0 for one that does not exist or is cared for already.
local no = closed()
if no then return no end
local taken = {}
for k = 6, #KEYS do
  if redis.call('LINDEX', KEYS[4], -1) ~= KEYS[k] then break end
  redis.call('RPOP', KEYS[4])
  taken[#taken + 1] = 0
  if redis.call('TYPE', KEYS[k]).ok == 'hash' then
    -- Anybody may push a key once more: what is settled stays so, and what is held is in one place.
    local known = redis.call('HMGET', KEYS[k], 'revision', 'status')
    local is_settled = known[1] and known[2] ~= 'dispatched'
    if not is_settled and redis.call('ZADD', KEYS[5], 'NX', ARGV[6], KEYS[k]) == 1 then
      redis.call('HSET', KEYS[k], 'router', ARGV[5], 'updated_at', ARGV[3])
      taken[#taken] = redis.call('HMGET', KEYS[k], unpack(ARGV, 7))
    end
  end
end
return taken
