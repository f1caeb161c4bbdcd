-- Takes up a message that was pushed by a program which knows nothing of us.
-- KEYS 4 msg_out_coordinator, 5 message, 6 letters, 7 dead_letters
-- ARGV 5 router, 6 caller, 7 id, 8.. fields
-- Gives the revision at which it was taken up first, '' for one that was so long ago that this was not written; 0 when
-- the router does not hold it any more.
local no = closed()
if no then return no end
if not redis.call('ZSCORE', KEYS[4], KEYS[5]) or not is_hash(KEYS[5]) then return 0 end
if redis.call('HGET', KEYS[5], 'router') ~= ARGV[5] then return 0 end
if kept_in(KEYS[5], KEYS[6]) then return redis.call('HGET', KEYS[5], 'taken_revision') or '' end

local revision = raise()
-- So that no message of ours gets its number. One that leaves few others moves nothing.
local id = tonumber(ARGV[7])
if id > last_message(ARGV[6]) and id <= ID_MAX / 2 then redis.call('HSET', KEYS[2], 'message:' .. ARGV[6], ARGV[7]) end
-- What only ours have.
redis.call('HDEL', KEYS[5], 'open', 'recipient', 'addresses', 'job_keys', 'flow_id', 'inbox_bytes')
redis.call('HSET', KEYS[5], 'revision', revision, 'taken_revision', revision, 'caller_id', ARGV[6], 'id', ARGV[7], 'status', 'dispatched', 'error', '',
  'transport_status', 'queued', 'updated_at', ARGV[3], unpack(ARGV, 8))
redis.call('ZADD', KEYS[6], revision, KEYS[5])
-- Its program may have written anew what was refused under this key.
redis.call('ZREM', KEYS[7], KEYS[5])
redis.call('ZREM', own('letters_done'), KEYS[5])
emit_message(revision, KEYS[5], 'dispatched')
hint('')
return string.format('%.0f', revision)
