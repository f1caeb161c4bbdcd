-- Removes a job that belongs to no flow, with its references, and remembers the request.
-- KEYS 4 job, 5 jobs, 6 blob_idle, then B blob_refs, then the request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 the job as `<caller>:<id>`, 7 request hash,
--      8 seconds to remember it, 9 B
-- Gives the revision of the change; 0 when the same request had made it before.
local no, context_revision = closed()
if no then return no end
use_reserve()
local blobs = tonumber(ARGV[9])
local request = KEYS[7 + blobs]
local before, other = asked_before(request, ARGV[7])
if other then return other end
if before then return 0 end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local job = redis.call('HMGET', KEYS[4], 'id', 'flow_id')
if not job[1] then return refuse('JOB_GONE', 'job ' .. ARGV[6]) end
if (job[2] or '') ~= '' then return refuse('JOB_IN_FLOW', 'job ' .. ARGV[6] .. ' belongs to flow ' .. job[2] .. ', and goes with it') end

local revision = raise()
redis.call('UNLINK', KEYS[4])
redis.call('ZREM', KEYS[5], ARGV[6])
for b = 1, blobs do
  if redis.call('SREM', KEYS[6 + b], KEYS[4]) == 1 and redis.call('EXISTS', KEYS[6 + b]) == 0 then
    redis.call('ZADD', KEYS[6], ARGV[3], string.match(KEYS[6 + b], '%x+$'))
  end
end
remember(request, ARGV[7], ARGV[8])
local caller, id = string.match(ARGV[6], '^(%d+):(%d+)$')
emit_job(revision, caller, id, true)
hint('')
return revision
