-- Creates a flow, reserves its job ids, and remembers the request.
-- KEYS 4 flow, 5 flows, 6 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 flow id, 7 caller, 8 how many nodes,
--      9 request hash, 10 seconds to remember it, 11 flow uid, 12 whether we chose the id, 13 the message that it is made of
--      ('' for none), 14 the revision at which that was taken up ('' for any), 15 how many flows that have not ended there may be,
--      16 how many nodes of those, 17 how many flows, 18.. fields of the flow
-- Gives 1, revision, first job id; or 0, flow id, flow uid, first job id of the flow that the request, or the message, was
-- given before.
local no = closed()
if no then return no end
local before, other = asked_before(KEYS[6], ARGV[9])
if other then return other end
if before then return {0, unpack(redis.call('HMGET', KEYS[6], 'flow_id', 'flow_uid', 'first_job_id'))} end
local message = ARGV[13] ~= '' and own(ARGV[13])
-- Its program may have written another one under this key since.
if message and not (is_hash(message) and kept_in(message, own('letters'))
  and (ARGV[14] == '' or redis.call('HGET', message, 'taken_revision') == ARGV[14])) then
  message = false
end
-- One that is sent again has its flow, however long ago that was made.
local flow = message and string.match(redis.call('HGET', message, 'flow_id') or '', '^%d+$')
if flow then
  local made = redis.call('HMGET', own('flow:' .. flow), 'uid', 'first_job_id', 'message', 'deleting')
  if made[1] and made[3] == ARGV[13] and not made[4] then return {0, flow, made[1], made[2]} end
end
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if redis.call('EXISTS', KEYS[4]) == 1 then
  return refuse('FLOW_EXISTS', redis.call('HGET', KEYS[2], 'flow') or '0')
end
local counters = redis.call('HMGET', KEYS[2], 'flow', 'job:' .. ARGV[7], 'flows_open', 'jobs_open')
local last, count = tonumber(counters[2] or '0'), tonumber(ARGV[8])
if last + count > ID_MAX then return refuse('IDS_EXHAUSTED', 'the caller has no job ids left') end
local open, nodes = tonumber(counters[3] or '0') + 1, tonumber(counters[4] or '0') + count
local full = beyond('context_flows_open_max', ARGV[15], open) or beyond('context_jobs_open_max', ARGV[16], nodes)
  or beyond('context_flows_max', ARGV[17], redis.call('ZCARD', KEYS[5]) + 1)
if full then return full end

local revision = raise()
local first = last + 1
-- An id that the caller chose moves nothing: a large one would leave no others.
local greatest = counters[1] or '0'
if ARGV[12] == '1' and tonumber(ARGV[6]) > tonumber(greatest) then greatest = ARGV[6] end
redis.call('HSET', KEYS[2], 'flow', greatest, 'job:' .. ARGV[7], string.format('%.0f', last + count),
  'flows_open', string.format('%.0f', open), 'jobs_open', string.format('%.0f', nodes))
redis.call('HSET', KEYS[4], 'revision', revision, 'first_job_id', first, 'counted', 1, unpack(ARGV, 18))
if message then redis.call('HSET', message, 'flow_id', ARGV[6]) end
-- From the first flow on each stands in the list of its status.
if redis.call('ZCARD', KEYS[5]) == 0 then redis.call('HSET', KEYS[2], 'flows_listed', 1) end
redis.call('ZADD', KEYS[5], revision, ARGV[6])
list_flow(ARGV[6], 'created')
remember(KEYS[6], ARGV[9], ARGV[10], 'flow_id', ARGV[6], 'flow_uid', ARGV[11], 'first_job_id', first)
emit_flow(revision, ARGV[6], 'created', 1)
hint('')
return {1, revision, first}
