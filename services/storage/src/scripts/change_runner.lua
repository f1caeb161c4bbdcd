-- Changes a runner record.
-- KEYS = runner runners runners_deleted
-- ARGV = context_revision runner expected_revision request_hash request_secs action keep_secs
--
-- Permission was decided on `context_revision` of the context. `expected_revision` is the one that the change builds on, '' for
-- any. `action` is `update`, `drain`, `resume` or `delete`; a deleted record is kept for `keep_secs`. With a request id the
-- request follows the keys; with `update`, fields follow the arguments.
-- Returns the revision of the change; 0 when nothing had to be changed.
local no, context_revision = closed()
if no then return no end
local request = KEYS[KEYS_NAMED + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return 0 end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local runner = redis.call('HMGET', KEYS.runner, 'revision', 'drained_at', 'deleted_at')
if not runner[1] or (runner[3] or '') ~= '' then return refuse('RUNNER_GONE', 'runner ' .. ARGV.runner) end
if ARGV.expected_revision ~= '' and runner[1] ~= ARGV.expected_revision then
  return refuse('RUNNER_CHANGED', 'runner ' .. ARGV.runner .. ' is at revision ' .. runner[1])
end

local action, is_drained, revision = ARGV.action, (runner[2] or '') ~= '', 0
local is_so = (action == 'drain' and is_drained) or (action == 'resume' and not is_drained)
if not is_so then
  revision = raise()
  if action == 'update' then
    redis.call('HSET', KEYS.runner, unpack(ARGV, ARGV_NAMED + 1))
  elseif action == 'delete' then
    -- Keeps the record for a while, for watchers of the jobs that still run there, and for repeated requests.
    redis.call('HSET', KEYS.runner, 'deleted_at', ARGV.now)
    redis.call('EXPIRE', KEYS.runner, ARGV.keep_secs)
    redis.call('SREM', KEYS.runners, ARGV.runner)
    redis.call('ZADD', KEYS.runners_deleted, ARGV.now, ARGV.runner)
    redis.call('ZREMRANGEBYSCORE', KEYS.runners_deleted, '-inf', tonumber(ARGV.now) - tonumber(ARGV.keep_secs))
  else
    redis.call('HSET', KEYS.runner, 'drained_at', action == 'drain' and ARGV.now or '')
  end
  redis.call('HSET', KEYS.runner, 'updated_at', ARGV.now, 'revision', revision)
  emit(revision, '{"kind":"runner","runner_id":' .. ARGV.runner .. '}')
  hint('runner')
end
remember(request, ARGV.request_hash, ARGV.request_secs, 'runner_id', ARGV.runner)
return revision
