-- Stores a new runner record.
-- KEYS = runner runners
-- ARGV = context_revision runner request_hash request_secs is_our_id runners_max runners_deleted_max
--
-- Permission was decided on `context_revision` of the context. `is_our_id` tells if we chose the id. There may be
-- `runners_max` records, and `runners_deleted_max` deleted ones. With a request id, the request follows the keys; after the
-- arguments follow fields.
-- Returns 1 and the revision; or 0 and the id of the runner of the first call.
local no, context_revision = closed()
if no then return no end
local request = KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return {0, redis.call('HGET', request, 'runner_id')} end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local last = tonumber(redis.call('HGET', KEYS.ids, 'runner') or '0')
if redis.call('EXISTS', KEYS.runner) == 1 then return refuse('RUNNER_EXISTS', tostring(last)) end
local full = beyond('context_runners_max', ARGV.runners_max, redis.call('SCARD', KEYS.runners) + 1)
  or beyond('context_runners_deleted_max', ARGV.runners_deleted_max, redis.call('ZCARD', own('runners_deleted')))
if full then return full end

local revision = raise()
-- Leaves the counter alone for an id that the caller chose: a large one would leave no others.
if ARGV.is_our_id == '1' and tonumber(ARGV.runner) > last then redis.call('HSET', KEYS.ids, 'runner', ARGV.runner) end
redis.call('HSET', KEYS.runner, 'revision', revision, unpack(ARGV, ARGV_NAMED + 1))
redis.call('SADD', KEYS.runners, ARGV.runner)
remember(request, ARGV.request_hash, ARGV.request_secs, 'runner_id', ARGV.runner)
emit(revision, '{"kind":"runner","runner_id":' .. ARGV.runner .. '}')
hint('runner')
return {1, revision}
