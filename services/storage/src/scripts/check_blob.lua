-- Checks a blob: its chunks, and the jobs that refer to it.
-- KEYS = blob blob_refs blob_idle
-- ARGV = hash
--
-- After the arguments follow keys of jobs that were seen to refer to it, and not to exist.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end
local gone, refs = 0, 'blob_refs:' .. ARGV.hash
for a = ARGV_NAMED + 1, #ARGV do
  local job = ARGV[a]
  -- Asks for no key of another context, which may be elsewhere.
  local exists = string.match(bare(job) or '', '^job:%d+:%d+$') and redis.call('EXISTS', job) == 1
  if not exists and redis.call('SISMEMBER', KEYS.blob_refs, job) == 1 then
    gone = gone + 1
    local problem = 'names ' .. string.sub(bare(job) or job, 1, 80) .. ', which does not exist'
    if report('BLOB_REFERENCE_STALE', refs, problem, 'the reference is removed') then redis.call('SREM', KEYS.blob_refs, job) end
  end
end
local count = redis.call('SCARD', KEYS.blob_refs)
local blob = redis.call('HMGET', KEYS.blob, 'size', 'chunks')
if not blob[1] then
  local left = REPAIRS and count or count - gone
  if left > 0 then report('BLOB_MISSING', 'blob:' .. ARGV.hash, left .. ' jobs refer to the blob, which does not exist') end
  return findings
end
-- Bounds the number of chunks: no blob has more, whatever is stored there.
for n = 0, math.min(tonumber(blob[2] or '0') or 0, 32) - 1 do
  if redis.call('EXISTS', KEYS.blob .. ':' .. n) == 0 then
    report('BLOB_CHUNK_MISSING', 'blob:' .. ARGV.hash, 'chunk ' .. n .. ' of ' .. blob[2] .. ' does not exist')
    break
  end
end
if count == 0 and not redis.call('ZSCORE', KEYS.blob_idle, ARGV.hash) then
  -- The last reference was removed just now.
  if gone > 0 then
    redis.call('ZADD', KEYS.blob_idle, ARGV.now, ARGV.hash)
  elseif report('BLOB_NEVER_EXPIRES', 'blob:' .. ARGV.hash, 'nothing refers to the blob, and it is not in blob_idle',
    'it is removed when its time comes') then
    redis.call('ZADD', KEYS.blob_idle, ARGV.now, ARGV.hash)
  end
end
return findings
