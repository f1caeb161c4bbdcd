-- Keeps a new runner record.
-- KEYS 4 runner, 5 runners, 6 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 runner id, 7 request hash, 8 seconds to remember it,
--      9 whether we chose the id, 10 how many there may be, 11 how many deleted ones, 12.. fields
-- Gives 1 and the revision; or 0 and the id of the runner of then.
local no, context_revision = closed()
if no then return no end
local before, other = asked_before(KEYS[6], ARGV[7])
if other then return other end
if before then return {0, redis.call('HGET', KEYS[6], 'runner_id')} end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local last = tonumber(redis.call('HGET', KEYS[2], 'runner') or '0')
if redis.call('EXISTS', KEYS[4]) == 1 then return refuse('RUNNER_EXISTS', tostring(last)) end
local full = beyond('context_runners_max', ARGV[10], redis.call('SCARD', KEYS[5]) + 1)
  or beyond('context_runners_deleted_max', ARGV[11], redis.call('ZCARD', own('runners_deleted')))
if full then return full end

local revision = raise()
-- An id that the caller chose moves nothing: a large one would leave no others.
if ARGV[9] == '1' and tonumber(ARGV[6]) > last then redis.call('HSET', KEYS[2], 'runner', ARGV[6]) end
redis.call('HSET', KEYS[4], 'revision', revision, unpack(ARGV, 12))
redis.call('SADD', KEYS[5], ARGV[6])
remember(KEYS[6], ARGV[7], ARGV[8], 'runner_id', ARGV[6])
emit(revision, '{"kind":"runner","runner_id":' .. ARGV[6] .. '}')
hint('runner')
return {1, revision}
