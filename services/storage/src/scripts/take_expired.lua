-- Moves messages whose hold has ended to another router.
-- KEYS 4 msg_out_coordinator, 5.. messages
-- ARGV 5 router, 6 end of the new hold, 7 now in Unix seconds, 8.. the fields that are wanted
-- Gives for each message its fields, or 0 for one that cannot be taken.
local no = closed()
if no then return no end
local taken = {}
for k = 5, #KEYS do
  local score = redis.call('ZSCORE', KEYS[4], KEYS[k])
  taken[k - 4] = 0
  if score and tonumber(score) <= tonumber(ARGV[7]) then
    if redis.call('EXISTS', KEYS[k]) == 1 then
      redis.call('HSET', KEYS[k], 'router', ARGV[5], 'updated_at', ARGV[3])
      redis.call('ZADD', KEYS[4], ARGV[6], KEYS[k])
      taken[k - 4] = redis.call('HMGET', KEYS[k], unpack(ARGV, 8))
    else
      redis.call('ZREM', KEYS[4], KEYS[k])
    end
  end
end
return taken
