-- Reserves a context's id, so that nobody else writes that context.
-- KEYS 3 contexts, 4 request (only with a request id)
-- ARGV 4 context id, 5 its uid, 6 request hash, 7 seconds to remember it, 8 a reservation from before this moment lapsed
-- Gives id and uid: its own and 1, or those of the same request before and 0.
if KEYS[4] then
  local made = redis.call('HMGET', KEYS[4], 'hash', 'context_id', 'uid')
  if made[1] then
    if made[1] ~= ARGV[6] then return refuse('REQUEST_ID_REUSED', 'the request id came with another body before') end
    local reserved = redis.call('HGET', KEYS[1], 'context:' .. made[2])
    local is_reserved = reserved and string.match(reserved, '^%x+') == made[3]
    if not is_reserved and redis.call('SISMEMBER', KEYS[3], made[2]) == 0 then
      return refuse('CONTEXT_GONE', 'the context that this request made was removed')
    end
    return {made[2], made[3], 0}
  end
end
local counters = redis.call('HMGET', KEYS[1], 'context', 'context:' .. ARGV[4])
local last = tonumber(counters[1] or '0')
if redis.call('SISMEMBER', KEYS[3], ARGV[4]) == 1 then return refuse('CONTEXT_EXISTS', tostring(last)) end
-- A reservation whose maker died before it wrote the context lapses.
local made_at = counters[2] and tonumber(string.match(counters[2], ' ([%d.]+)$'))
if made_at and made_at > tonumber(ARGV[8]) then return refuse('CONTEXT_RESERVED', tostring(last)) end

if tonumber(ARGV[4]) > last then redis.call('HSET', KEYS[1], 'context', ARGV[4]) end
redis.call('HSET', KEYS[1], 'context:' .. ARGV[4], ARGV[5] .. ' ' .. ARGV[2])
if KEYS[4] then
  redis.call('HSET', KEYS[4], 'hash', ARGV[6], 'context_id', ARGV[4], 'uid', ARGV[5])
  redis.call('EXPIRE', KEYS[4], ARGV[7])
end
return {ARGV[4], ARGV[5], 1}
