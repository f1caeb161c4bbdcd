-- Adds nodes with their jobs to a flow that is being created; what stands at the same place gives way.
-- KEYS 4 flow, 5 its nodes, 6 blob_idle, then B pairs blob and blob_refs, then N jobs, then request (only with a request id)
-- ARGV 5 flow id, 6 flow uid, 7 B, 8 N, 9 R, 10 the context's revision that permission was decided on ('' for a
--      service), 11 what the keys of this context begin with, 12 request hash, 13 seconds to remember it, 14 whether these are
--      the last nodes of the request, 15 the job of its first, then R pairs (number of a blob, number of a job that refers to
--      it),
--      then N times: job id, node, F, F times field and value
-- Gives the new revision, or 0 when nothing changed.
local no, context_revision = closed()
if no then return no end
local request = KEYS[7 + 2 * tonumber(ARGV[7]) + tonumber(ARGV[8])]
local known, reused = asked_before(request, ARGV[12])
if reused then return reused end
-- Of one whose nodes came in parts the last ones may be missing.
if known and redis.call('HGET', request, 'pending') == '0' then return 0 end
if ARGV[10] ~= '' and context_revision ~= ARGV[10] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'status', 'first_job_id', 'node_count', 'deleting')
if flow[1] ~= ARGV[6] or flow[5] then return refuse('FLOW_GONE', 'flow ' .. ARGV[5]) end
if flow[2] ~= 'created' then return refuse('FLOW_NOT_CREATED', 'flow ' .. ARGV[5] .. ' is ' .. told(flow[2])) end
local blobs, count, refs = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local missing = without_blob(blobs, 6)
if missing then return missing end
-- Whether a job is what stands in the arguments from `from` on, whenever it was made.
local function is_same(job, from)
  local names, values = {}, {}
  for a = from + 3, from + 1 + 2 * tonumber(ARGV[from + 2]), 2 do
    if ARGV[a] ~= 'created_at' and ARGV[a] ~= 'updated_at' then
      names[#names + 1] = ARGV[a]
      values[#values + 1] = ARGV[a + 1]
    end
  end
  for n, value in ipairs(redis.call('HMGET', job, unpack(names))) do
    if value ~= values[n] then return false end
  end
  return true
end

local first, at, same = tonumber(flow[3]), 16 + 2 * refs, 0
local jobs_at = 6 + 2 * blobs
for n = 1, count do
  local id = tonumber(ARGV[at])
  if id < first or id >= first + tonumber(flow[4]) then
    return refuse('JOB_NOT_RESERVED', 'job ' .. ARGV[at] .. ' was not reserved for flow ' .. ARGV[5])
  end
  local node = redis.call('HGET', KEYS[5], ARGV[at])
  if node == ARGV[at + 1] and is_same(KEYS[jobs_at + n], at) then same = same + 1 end
  at = at + 3 + 2 * tonumber(ARGV[at + 2])
end
remember(request, ARGV[12], ARGV[13], 'pending', ARGV[14] == '1' and 0 or 1, 'first_job_id', ARGV[15])
if same == count then return 0 end

-- Removes a job that gives way to another, and its references.
local function forget(job)
  local old = redis.call('HMGET', job, 'script', 'files')
  if not old[1] then return end
  -- A text is no reference, whatever it says.
  local named = string.match(old[1], '^sha256:%x+$') and '"sha256":"' .. string.sub(old[1], 8) .. '"' or ''
  for hash in string.gmatch(named .. old[2], '"sha256":"(%x+)"') do
    local refs_key = ARGV[11] .. 'blob_refs:' .. hash
    if redis.call('SREM', refs_key, job) == 1 and redis.call('EXISTS', refs_key) == 0 then
      redis.call('ZADD', KEYS[6], ARGV[3], hash)
    end
  end
  redis.call('DEL', job)
end

local revision = raise()
for n = 1, count do forget(KEYS[jobs_at + n]) end
write_nodes(KEYS[5], count, jobs_at, 16 + 2 * refs)
refer(KEYS[6], blobs, 6, refs, jobs_at, 16)
redis.call('HSET', KEYS[4], 'revision', revision, 'updated_at', ARGV[3])
emit_flow(revision, ARGV[5], 'created', 1)
hint('')
return revision
