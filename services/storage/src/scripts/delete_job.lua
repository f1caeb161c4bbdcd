-- Removes a job that belongs to no flow, with its references, and remembers the request.
-- KEYS = job jobs blob_idle
-- ARGV = context_revision job request_hash request_secs blobs
--
-- Permission was decided on `context_revision` of the context. `job` is `<caller>:<id>`, `blobs` the number of blobs. After the keys
-- follow the blob_refs, and with a request id the request.
-- Returns the revision of the change; 0 when the same request had made it before.
local no, context_revision = closed()
if no then return no end
use_reserve()
local blobs = tonumber(ARGV.blobs)
local request = KEYS[KEYS_NAMED + blobs + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return 0 end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local job = redis.call('HMGET', KEYS.job, 'id', 'flow_id')
if not job[1] then return refuse('JOB_GONE', 'job ' .. ARGV.job) end
if (job[2] or '') ~= '' then
  return refuse('JOB_IN_FLOW', 'job ' .. ARGV.job .. ' belongs to flow ' .. job[2] .. ', and goes with it')
end

local revision = raise()
redis.call('UNLINK', KEYS.job)
redis.call('ZREM', KEYS.jobs, ARGV.job)
for b = 1, blobs do
  if redis.call('SREM', KEYS[KEYS_NAMED + b], KEYS.job) == 1 and redis.call('EXISTS', KEYS[KEYS_NAMED + b]) == 0 then
    redis.call('ZADD', KEYS.blob_idle, ARGV.now, string.match(KEYS[KEYS_NAMED + b], '%x+$'))
  end
end
remember(request, ARGV.request_hash, ARGV.request_secs)
local caller, id = string.match(ARGV.job, '^(%d+):(%d+)$')
emit_job(revision, caller, id, true)
hint('')
return revision
