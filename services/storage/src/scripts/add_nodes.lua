-- Adds nodes with their jobs to a flow that is being created; they replace nodes at the same place.
-- KEYS = flow nodes blob_idle
-- ARGV = flow flow_uid blobs nodes refs context_revision prefix request_hash request_secs is_last first_job
--
-- Permission was decided on `context_revision` of the context, '' for a service. `blobs`, `nodes` and `refs` are their numbers;
-- `prefix` is what the keys of this context begin with. `is_last` tells if these are the last nodes of the request,
-- `first_job` the job of the request's first node. After the keys follow for each blob its key and its blob_refs, the jobs of the
-- nodes, and with a request id the request. After the arguments follow for each reference the number of a blob and of the job that
-- refers to it; for each node its job id, itself, F, and F times field and value.
-- Returns the new revision, or 0 when nothing changed.
local no, context_revision = closed()
if no then return no end
local blobs, count, refs = tonumber(ARGV.blobs), tonumber(ARGV.nodes), tonumber(ARGV.refs)
local jobs_at, nodes_at = KEYS_NAMED + 2 * blobs, ARGV_NAMED + 1 + 2 * refs
local request = KEYS[jobs_at + count + 1]
local known, reused = asked_before(request, ARGV.request_hash)
if reused then return reused end
-- Goes on with a request whose nodes came in parts, since the last ones may be missing.
if known and redis.call('HGET', request, 'pending') == '0' then return 0 end
if ARGV.context_revision ~= '' and context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS.flow, 'uid', 'status', 'first_job_id', 'node_count', 'deleting')
if flow[1] ~= ARGV.flow_uid or flow[5] then return refuse('FLOW_GONE', 'flow ' .. ARGV.flow) end
if flow[2] ~= 'created' then return refuse('FLOW_NOT_CREATED', 'flow ' .. ARGV.flow .. ' is ' .. told(flow[2])) end
local missing = without_blob(blobs, KEYS_NAMED)
if missing then return missing end
-- Returns true if a job equals the one in the arguments from `from` on, except for its times.
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

local first, at, same = tonumber(flow[3]), nodes_at, 0
for n = 1, count do
  local id = tonumber(ARGV[at])
  if id < first or id >= first + tonumber(flow[4]) then
    return refuse('JOB_NOT_RESERVED', 'job ' .. ARGV[at] .. ' was not reserved for flow ' .. ARGV.flow)
  end
  local node = redis.call('HGET', KEYS.nodes, ARGV[at])
  if node == ARGV[at + 1] and is_same(KEYS[jobs_at + n], at) then same = same + 1 end
  at = at + 3 + 2 * tonumber(ARGV[at + 2])
end
remember(request, ARGV.request_hash, ARGV.request_secs, 'pending', ARGV.is_last == '1' and 0 or 1, 'first_job_id', ARGV.first_job)
if same == count then return 0 end

-- Removes a job that is replaced by another, and its references.
local function forget(job)
  local old = redis.call('HMGET', job, 'script', 'files')
  if not old[1] then return end
  -- Only a hash is a reference: a text is none, whatever it says.
  local named = string.match(old[1], '^sha256:%x+$') and '"sha256":"' .. string.sub(old[1], 8) .. '"' or ''
  for hash in string.gmatch(named .. old[2], '"sha256":"(%x+)"') do
    local refs_key = ARGV.prefix .. 'blob_refs:' .. hash
    if redis.call('SREM', refs_key, job) == 1 and redis.call('EXISTS', refs_key) == 0 then
      redis.call('ZADD', KEYS.blob_idle, ARGV.now, hash)
    end
  end
  redis.call('DEL', job)
end

local revision = raise()
for n = 1, count do forget(KEYS[jobs_at + n]) end
write_nodes(KEYS.nodes, count, jobs_at, nodes_at)
refer(KEYS.blob_idle, blobs, KEYS_NAMED, refs, jobs_at, ARGV_NAMED + 1)
redis.call('HSET', KEYS.flow, 'revision', revision, 'updated_at', ARGV.now)
emit_flow(revision, ARGV.flow, 'created', 1)
hint('')
return revision
