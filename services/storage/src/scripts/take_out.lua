-- Moves messages from the end of `msg_out` into the hold of a router, as far as they are still those that were seen there.
-- KEYS 4 msg_out, 5 msg_out_coordinator, 6.. the messages at the end of the list, last first
-- ARGV 5 router, 6 end of the hold
-- Gives for each message that was moved its fields, or 0 for one that does not exist.
local no = closed()
if no then return no end
local taken = {}
for k = 6, #KEYS do
  if redis.call('LINDEX', KEYS[4], -1) ~= KEYS[k] then break end
  redis.call('RPOP', KEYS[4])
  if redis.call('TYPE', KEYS[k]).ok == 'hash' then
    redis.call('HSET', KEYS[k], 'router', ARGV[5], 'updated_at', ARGV[3])
    redis.call('ZADD', KEYS[5], ARGV[6], KEYS[k])
    taken[#taken + 1] = redis.call('HMGET', KEYS[k], 'flow_id', 'to', 'timeout_ack', 'nodes', 'created_at')
  else
    taken[#taken + 1] = 0
  end
end
return taken
