-- Applies one step of one flow.
-- KEYS 4 flow, 5 its nodes, 6 its messages, 7 flows_active, 8 due, 9 msg_out, 10 msg_out_coordinator, 11 blob_idle,
--      12 its inputs, 13 its waiters, then N jobs, then M messages, then B pairs blob and blob_refs,
--      then A times the waiters of a flow that it waits for
-- ARGV 5 flow id, 6 flow uid, 7 owner, 8 epoch, 9 last commit, 10 commit id, 11 new status ('' for none),
--      12 result, 13 whether it is incomplete, 14 due in Unix seconds ('' for never), 15 router ('' for none),
--      16 end of its hold, 17 N, 18 M, 19 E, 20 B, 21 context id,
--      22 how many inputs it has taken up, 23 whether it rests, 24 A,
--      then N times: job id, node, job status, result ('' for unchanged);
--      then M times: caller, id, runner, timeout_ack, nodes, time of its making;
--      then E events; then B times the number of the job that refers to the blob
-- Gives the flow's new revision; that of then, negative, when the same commit was applied before.
local no = closed()
if no then return no end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'owner', 'epoch', 'last_commit', 'status', 'generation', 'deleting',
  'last_commit_revision')
if flow[1] ~= ARGV[6] or flow[7] then return refuse('FLOW_GONE', 'the flow') end
if flow[4] == ARGV[10] then return -tonumber(flow[8]) end
if flow[2] ~= ARGV[7] or flow[3] ~= ARGV[8] then
  return refuse('FENCED', 'owner ' .. (flow[2] or '') .. ' epoch ' .. (flow[3] or ''))
end
-- Wishes of others raise the flow's revision; what fences is the owner's last change.
if flow[4] ~= ARGV[9] then return refuse('FENCED', 'last commit ' .. (flow[4] or '')) end
if flow[5] ~= 'started' then return refuse('FENCED', 'the flow is ' .. flow[5]) end

local revision = raise()
local N, M, E, B = tonumber(ARGV[17]), tonumber(ARGV[18]), tonumber(ARGV[19]), tonumber(ARGV[20])
local at, jobs_at, kind = 24, 13, ''
if N > 0 then
  local nodes = {}
  for n = 1, N do
    nodes[2 * n - 1] = ARGV[at + 1]
    nodes[2 * n] = ARGV[at + 2]
    if ARGV[at + 4] == '' then
      redis.call('HSET', KEYS[jobs_at + n], 'status', ARGV[at + 3], 'updated_at', ARGV[3])
    else
      redis.call('HSET', KEYS[jobs_at + n], 'status', ARGV[at + 3], 'updated_at', ARGV[3], 'result', ARGV[at + 4])
    end
    at = at + 4
  end
  redis.call('HSET', KEYS[5], unpack(nodes))
end
for m = 1, M do
  local key = KEYS[jobs_at + N + m]
  redis.call('HSET', key, 'caller_id', ARGV[at + 1], 'id', ARGV[at + 2], 'to', ARGV[at + 3], 'timeout_ack', ARGV[at + 4],
    'nodes', ARGV[at + 5], 'created_at', ARGV[at + 6], 'updated_at', ARGV[3], 'context_id', ARGV[21],
    'flow_id', ARGV[5], 'router', ARGV[15], 'target_context', '', 'topic', '', 'from_pubkey', '', 'origin', '',
    'signature', '', 'message', '', 'message_type', 'job', 'message_format_type', 'text', 'timeout', '0',
    'timeout_result', '0', 'logs', '[]', 'status', 'dispatched', 'error', '', 'transport_id', '',
    'transport_status', 'queued')
  redis.call('SADD', KEYS[6], key)
  if ARGV[15] == '' then
    redis.call('LPUSH', KEYS[9], key)
    kind = 'out'
  else
    redis.call('ZADD', KEYS[10], ARGV[16], key)
  end
  at = at + 6
end
for e = 1, E do emit(revision, ARGV[at + e]) end
at = at + E
for b = 1, B do
  local blob = KEYS[jobs_at + N + M + 2 * b - 1]
  if redis.call('EXISTS', blob) == 1 then
    redis.call('SADD', KEYS[jobs_at + N + M + 2 * b], KEYS[jobs_at + tonumber(ARGV[at + b])])
    redis.call('ZREM', KEYS[11], string.match(blob, '%x+$'))
  end
end
redis.call('HSET', KEYS[4], 'revision', revision, 'last_commit', ARGV[10], 'last_commit_revision', revision, 'updated_at', ARGV[3])
if ARGV[11] ~= '' then
  redis.call('HSET', KEYS[4], 'status', ARGV[11], 'result', ARGV[12], 'result_truncated', ARGV[13])
  emit_flow(revision, ARGV[5], ARGV[11], flow[6])
elseif E == 0 then
  emit_flow(revision, ARGV[5], 'started', flow[6])
end
local me, ends = ARGV[5] .. '-' .. ARGV[6], ARGV[11] ~= '' and ARGV[11] ~= 'started'
local taken = tonumber(ARGV[22])
if ends then
  redis.call('UNLINK', KEYS[12])
elseif taken > 0 then
  redis.call('LTRIM', KEYS[12], taken, -1)
end
-- What came meanwhile keeps it from resting: an input, or the end of a flow that it waits for.
local rests = ARGV[23] == '1' and redis.call('LLEN', KEYS[12]) == 0
for a = 1, tonumber(ARGV[24]) do
  rests = rests and redis.call('SISMEMBER', KEYS[jobs_at + N + M + 2 * B + a], me) == 1
end
if ends or rests then
  redis.call('SREM', KEYS[7], me)
else
  redis.call('SADD', KEYS[7], me)
end
if not ends and ARGV[14] ~= '' then
  redis.call('ZADD', KEYS[8], ARGV[14], me)
else
  redis.call('ZREM', KEYS[8], me)
end
if ends then wake(KEYS[13], KEYS[7]) end
hint(kind)
return revision
