-- Takes up a message that was pushed by a program without gRPC.
-- KEYS = held message letters dead_letters
-- ARGV = router caller id
--
-- After the arguments follow fields.
-- Returns the revision at which it was taken up first, '' if that was too long ago to be recorded; 0 when the router
-- does not hold it any more.
local no = closed()
if no then return no end
if not redis.call('ZSCORE', KEYS.held, KEYS.message) or not is_hash(KEYS.message) then return 0 end
if redis.call('HGET', KEYS.message, 'router') ~= ARGV.router then return 0 end
if kept_in(KEYS.message, KEYS.letters) then return redis.call('HGET', KEYS.message, 'taken_revision') or '' end

local revision = raise()
-- Raises the counter so that no message of ours gets its number. A number that leaves few others does not raise it.
local id = tonumber(ARGV.id)
if id > last_message(ARGV.caller) and id <= ID_MAX / 2 then
  redis.call('HSET', KEYS.ids, 'message:' .. ARGV.caller, ARGV.id)
end
-- Removes fields that only our messages have.
redis.call('HDEL', KEYS.message, 'open', 'recipient', 'addresses', 'job_keys', 'flow_id', 'inbox_bytes')
redis.call('HSET', KEYS.message, 'revision', revision, 'taken_revision', revision, 'caller_id', ARGV.caller, 'id', ARGV.id,
  'status', 'dispatched', 'error', '', 'transport_status', 'queued', 'updated_at', ARGV.now, unpack(ARGV, ARGV_NAMED + 1))
redis.call('ZADD', KEYS.letters, revision, KEYS.message)
-- Revives a key whose refused message its program may have written again.
redis.call('ZREM', KEYS.dead_letters, KEYS.message)
redis.call('ZREM', own('letters_done'), KEYS.message)
emit_message(revision, KEYS.message, 'dispatched')
hint('')
return string.format('%.0f', revision)
