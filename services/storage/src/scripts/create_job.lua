-- Stores a job that belongs to no flow, and remembers the request.
-- KEYS = jobs blob_idle
-- ARGV = context_revision caller request_hash request_secs blobs jobs_max
--
-- Permission was decided on `context_revision` of the context. `blobs` is the number of blobs, `jobs_max` the maximum number of
-- jobs. After the keys follow for each blob its key and its blob_refs, and with a request id the request; after the arguments
-- follow fields.
-- Returns the job's number and the revision; or the number that the same request was given, and 0.
local no, context_revision = closed()
if no then return no end
local blobs = tonumber(ARGV.blobs)
local request = KEYS[KEYS_NAMED + 2 * blobs + 1]
local before, other = asked_before(request, ARGV.request_hash)
if other then return other end
if before then return {redis.call('HGET', request, 'job_id'), 0} end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local missing = without_blob(blobs, KEYS_NAMED)
if missing then return missing end
local last = tonumber(redis.call('HGET', KEYS.ids, 'job:' .. ARGV.caller) or '0')
if last >= ID_MAX then return refuse('IDS_EXHAUSTED', 'the caller has no job ids left') end
local full = beyond('context_jobs_kept_max', ARGV.jobs_max, redis.call('ZCARD', KEYS.jobs) + 1)
if full then return full end

local revision = raise()
local id = string.format('%.0f', redis.call('HINCRBY', KEYS.ids, 'job:' .. ARGV.caller, 1))
local key = own('job:' .. ARGV.caller .. ':' .. id)
redis.call('HSET', key, 'id', id, unpack(ARGV, ARGV_NAMED + 1))
redis.call('ZADD', KEYS.jobs, revision, ARGV.caller .. ':' .. id)
for b = 1, blobs do
  redis.call('SADD', KEYS[KEYS_NAMED + 2 * b], key)
  redis.call('ZREM', KEYS.blob_idle, string.match(KEYS[KEYS_NAMED + 2 * b - 1], '%x+$'))
end
remember(request, ARGV.request_hash, ARGV.request_secs, 'job_id', id)
emit_job(revision, ARGV.caller, id, false)
hint('')
return {id, revision}
