-- Ends the care for messages.
-- KEYS 4 msg_out_coordinator, 5.. messages
-- ARGV 5.. for each message: why it will not arrive, '' when the receiver acknowledged it
local no = closed()
if no then return no end
local settled = 0
for k = 5, #KEYS do
  if redis.call('ZREM', KEYS[4], KEYS[k]) == 1 then
    settled = settled + 1
    if redis.call('EXISTS', KEYS[k]) == 1 then
      local failed = ARGV[k] ~= ''
      redis.call('HSET', KEYS[k], 'status', failed and 'error' or 'acknowledged', 'error', ARGV[k], 'updated_at', ARGV[3],
        'transport_status', failed and 'failed' or 'read')
    end
  end
end
return settled
