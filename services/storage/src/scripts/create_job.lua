-- Keeps a job that belongs to no flow, and remembers the request.
-- KEYS 4 jobs, 5 blob_idle, then B pairs blob and blob_refs, then the request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 caller, 7 request hash, 8 seconds to remember it, 9 B,
--      10 how many there may be, 11.. fields
-- Gives the job's number and the revision; or the number that the same request was given, and 0.
local no, context_revision = closed()
if no then return no end
local blobs = tonumber(ARGV[9])
local request = KEYS[6 + 2 * blobs]
local before, other = asked_before(request, ARGV[7])
if other then return other end
if before then return {redis.call('HGET', request, 'job_id'), 0} end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local missing = without_blob(blobs, 5)
if missing then return missing end
local last = tonumber(redis.call('HGET', KEYS[2], 'job:' .. ARGV[6]) or '0')
if last >= ID_MAX then return refuse('IDS_EXHAUSTED', 'the caller has no job ids left') end
local full = beyond('context_jobs_kept_max', ARGV[10], redis.call('ZCARD', KEYS[4]) + 1)
if full then return full end

local revision = raise()
local id = string.format('%.0f', redis.call('HINCRBY', KEYS[2], 'job:' .. ARGV[6], 1))
local key = own('job:' .. ARGV[6] .. ':' .. id)
redis.call('HSET', key, 'id', id, unpack(ARGV, 11))
redis.call('ZADD', KEYS[4], revision, ARGV[6] .. ':' .. id)
for b = 1, blobs do
  redis.call('SADD', KEYS[5 + 2 * b], key)
  redis.call('ZREM', KEYS[5], string.match(KEYS[4 + 2 * b], '%x+$'))
end
remember(request, ARGV[7], ARGV[8], 'job_id', id)
emit_job(revision, ARGV[6], id, false)
hint('')
return {id, revision}
