-- Starts an ended flow again, without an owner yet, and remembers the request.
-- KEYS 4 flow, 5 flows_active, 6 request (only with a request id), last the jobs that have new signatures
-- ARGV 5 the context's revision that permission was decided on, 6 flow id, 7 flow uid, 8 the generation that ended,
--      9 what was chosen, 10 environment, 11 now in milliseconds, 12 what the first commit builds on, 13 request hash,
--      14 seconds to remember it, 15 what the keys of this context begin with, 16 the revision that is expected ('' for any),
--      17 how many flows that have not ended there may be, 18 how many nodes of those, 19… the new signatures
-- Gives the new revision; 0 when the same request had started it before.
local no, context_revision = closed()
if no then return no end
local signed = #ARGV - 18
local request = #KEYS - signed == 6 and KEYS[6]
local before, other = asked_before(request, ARGV[13])
if other then return other end
if before then return 0 end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'status', 'generation', 'epoch', 'deadline_secs', 'deleting',
  'message', 'revision', 'node_count')
if flow[1] ~= ARGV[7] or flow[6] then return refuse('FLOW_GONE', 'flow ' .. ARGV[6]) end
if ARGV[16] ~= '' and flow[8] ~= ARGV[16] then
  return refuse('FLOW_CHANGED', 'flow ' .. ARGV[6] .. ' is at revision ' .. flow[8])
end
if flow[2] == 'created' or flow[2] == 'started' then
  return refuse('FLOW_NOT_ENDED', 'flow ' .. ARGV[6] .. ' is ' .. told(flow[2]))
end
if flow[3] ~= ARGV[8] then
  return refuse('FLOW_CHANGED', 'flow ' .. ARGV[6] .. ' was run again meanwhile: its generation is ' .. flow[3])
end
local open = redis.call('HMGET', KEYS[2], 'flows_open', 'jobs_open')
local full = beyond('context_flows_open_max', ARGV[17], tonumber(open[1] or '0') + 1)
  or beyond('context_jobs_open_max', ARGV[18], tonumber(open[2] or '0') + tonumber(flow[9]))
if full then return full end

local revision = raise()
count_open(1, tonumber(flow[9]))
local generation = string.format('%.0f', tonumber(flow[3]) + 1)
redis.call('HINCRBY', KEYS[4], 'epoch', 1)
redis.call('HSET', KEYS[4], 'status', 'started', 'generation', generation, 'owner', '', 'last_commit', ARGV[12],
  'last_commit_revision', revision, 'env_vars', ARGV[10], 'rerun', ARGV[9], 'cancel_requested_time', '',
  'cancel_grace_secs', '0', 'result', '{}', 'result_truncated', 'false', 'deadline', deadline(ARGV[11], flow[5]),
  'updated_at', ARGV[3], 'revision', revision, 'counted', 1)
local me = ARGV[6] .. '-' .. ARGV[7]
redis.call('SADD', KEYS[5], me)
list_flow(ARGV[6], 'started', flow[2])
for i = 1, signed do
  local job = KEYS[#KEYS - signed + i]
  if redis.call('EXISTS', job) == 1 then
    redis.call('HSET', job, 'signature', ARGV[18 + i], 'updated_at', ARGV[3])
  end
end
remember(request, ARGV[13], ARGV[14])
-- The message that it was made of waits for its end again.
local message = flow[7] and flow[7] ~= '' and ARGV[15] .. flow[7]
if message and is_hash(message) and redis.call('HGET', message, 'flow_id') == ARGV[6] then
  redis.call('ZREM', own('letters_done'), message)
  redis.call('HSET', message, 'status', 'acknowledged', 'error', '', 'updated_at', ARGV[3], 'revision', revision)
  emit_message(revision, message, 'acknowledged')
end
emit_flow(revision, ARGV[6], 'started', generation)
hint('')
touch(me)
return revision
