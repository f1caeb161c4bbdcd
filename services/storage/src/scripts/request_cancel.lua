-- Keeps the wish to cancel a flow; the first wish counts.
-- KEYS 4 flow, 5 request (only with a request id)
-- ARGV 5 the context's revision that permission was decided on, 6 flow id, 7 flow uid, 8 event,
--      9 request hash, 10 seconds to remember it
local no = closed()
if no then return no end
if KEYS[5] then
  local hash = redis.call('HGET', KEYS[5], 'hash')
  if hash and hash ~= ARGV[9] then
    return refuse('REQUEST_ID_REUSED', 'the request id came with another body before')
  end
end
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
local flow = redis.call('HMGET', KEYS[4], 'uid', 'status', 'cancel_requested_time', 'deleting')
if flow[1] ~= ARGV[7] or flow[4] then return refuse('FLOW_GONE', 'flow ' .. ARGV[6]) end
local runs = flow[2] == 'created' or flow[2] == 'started'

local revision = 0
if runs and flow[3] == '' then
  revision = raise()
  redis.call('HSET', KEYS[4], 'cancel_requested_time', ARGV[3], 'updated_at', ARGV[3], 'revision', revision)
  emit(revision, ARGV[8])
  hint('')
end
if KEYS[5] then
  redis.call('HSET', KEYS[5], 'hash', ARGV[9])
  redis.call('EXPIRE', KEYS[5], ARGV[10])
end
return revision
