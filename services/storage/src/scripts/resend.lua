-- Assigns a dead letter to a router again, and remembers the request.
-- KEYS = message letters dead_letters out
-- ARGV = context_revision message made_from expires_at addresses request_hash request_secs public_key refusal
--
-- Permission was decided on `context_revision` of the context. A message from before `made_from` is too old. The message has to
-- arrive until `expires_at`, and is tried at `addresses`, '' for unchanged. `public_key` is the key that it is from, '' for
-- unchanged; `refusal` tells why its sender's key is refused, '' when it is not. With a request id, the request follows the keys.
-- Returns the revision; 0 when the same request had done it before.
local no, context_revision = closed()
if no then return no end
local request = KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return 0 end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if redis.call('EXISTS', KEYS.message) == 0 then return refuse('MESSAGE_GONE', ARGV.message) end
if not redis.call('ZSCORE', KEYS.letters, KEYS.message) then
  return refuse('CARRIES_NODES', ARGV.message .. ' carries nodes, which went by their retry policy: run them again')
end
if not redis.call('ZSCORE', KEYS.dead_letters, KEYS.message) then
  return refuse('NOT_A_DEAD_LETTER', ARGV.message .. ' is not among those that will not arrive')
end
local message = redis.call('HMGET', KEYS.message, 'created_at', 'recipient')
if (tonumber(message[1]) or 0) < tonumber(ARGV.made_from) then
  return refuse('MESSAGE_TOO_OLD', ARGV.message .. ' was made more than 6 days ago')
end
if ARGV.refusal ~= '' then return refuse('SENDER_KEY_OVER', ARGV.message .. ' ' .. ARGV.refusal) end

local revision = raise()
redis.call('HSET', KEYS.message, 'status', 'dispatched', 'transport_status', 'queued', 'error', '', 'router', '',
  'expires_at', ARGV.expires_at, 'updated_at', ARGV.now, 'revision', revision)
if ARGV.addresses ~= '' then redis.call('HSET', KEYS.message, 'addresses', ARGV.addresses) end
if ARGV.public_key ~= '' then redis.call('HSET', KEYS.message, 'from_pubkey', ARGV.public_key) end
note(KEYS.message, 'sent again')
redis.call('ZREM', KEYS.dead_letters, KEYS.message)
redis.call('ZREM', own('letters_done'), KEYS.message)
redis.call('LPUSH', KEYS.out, KEYS.message)
remember(request, ARGV.request_hash, ARGV.request_secs)
emit_message(revision, KEYS.message, 'dispatched')
hint('out')
return revision
