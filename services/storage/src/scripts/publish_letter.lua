-- Stores chat or mail that is sent from here, assigns it to a router, and remembers the request.
-- KEYS = letters out held
-- ARGV = context_revision caller router hold_end prefix request_hash request_secs
--
-- Permission was decided on `context_revision` of the context. `router` is '' for none; `prefix` is what the keys of this context
-- begin with. With a request id, the request follows the keys; after the arguments follow fields.
-- Returns its number and the revision; or the number that the same request was given, and 0.
local no, context_revision = closed()
if no then return no end
local request = KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return {redis.call('HGET', request, 'message_id'), 0} end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local id, key = new_message(ARGV.prefix, ARGV.caller)
if not id then return refuse('IDS_EXHAUSTED', 'the caller has no message ids left') end

local revision = raise()
redis.call('HSET', key, 'id', id, 'router', ARGV.router, 'revision', revision, unpack(ARGV, ARGV_NAMED + 1))
redis.call('ZADD', KEYS.letters, revision, key)
remember(request, ARGV.request_hash, ARGV.request_secs, 'caller_id', ARGV.caller, 'message_id', id)
emit_message(revision, key, 'dispatched')
if ARGV.router == '' then
  redis.call('LPUSH', KEYS.out, key)
  hint('out')
else
  redis.call('ZADD', KEYS.held, ARGV.hold_end, key)
  hint('')
end
return {id, revision}
