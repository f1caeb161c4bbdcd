-- Changes a runner record.
-- KEYS 4 runner, 5 runners, 6 runners_deleted, 7 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 runner id, 7 the revision that it builds on ('' for any),
--      8 request hash, 9 seconds to remember it, 10 `update`, `drain`, `resume` or `delete`,
--      11 seconds to keep one that is deleted, 12.. with `update`: fields
-- Gives the revision of the change; 0 when nothing had to be changed.
local no, context_revision = closed()
if no then return no end
local before, other = asked_before(KEYS[7], ARGV[8])
if other then return other end
if before then return 0 end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local runner = redis.call('HMGET', KEYS[4], 'revision', 'drained_at', 'deleted_at')
if not runner[1] or (runner[3] or '') ~= '' then return refuse('RUNNER_GONE', 'runner ' .. ARGV[6]) end
if ARGV[7] ~= '' and runner[1] ~= ARGV[7] then
  return refuse('RUNNER_CHANGED', 'runner ' .. ARGV[6] .. ' is at revision ' .. runner[1])
end

local action, is_drained, revision = ARGV[10], (runner[2] or '') ~= '', 0
local is_so = (action == 'drain' and is_drained) or (action == 'resume' and not is_drained)
if not is_so then
  revision = raise()
  if action == 'update' then
    redis.call('HSET', KEYS[4], unpack(ARGV, 12))
  elseif action == 'delete' then
    -- It is kept for a while, for those who listen until what runs there has ended, and for repeated requests.
    redis.call('HSET', KEYS[4], 'deleted_at', ARGV[3])
    redis.call('EXPIRE', KEYS[4], ARGV[11])
    redis.call('SREM', KEYS[5], ARGV[6])
    redis.call('ZADD', KEYS[6], ARGV[3], ARGV[6])
    redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', tonumber(ARGV[3]) - tonumber(ARGV[11]))
  else
    redis.call('HSET', KEYS[4], 'drained_at', action == 'drain' and ARGV[3] or '')
  end
  redis.call('HSET', KEYS[4], 'updated_at', ARGV[3], 'revision', revision)
  emit(revision, '{"kind":"runner","runner_id":' .. ARGV[6] .. '}')
  hint('runner')
end
remember(KEYS[7], ARGV[8], ARGV[9], 'runner_id', ARGV[6])
return revision
