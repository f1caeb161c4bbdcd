-- Changes members and settings of a context.
-- KEYS 4 request (only with a request id)
-- ARGV 5 the context's revision that was decided on, 6 request hash, 7 seconds to remember it,
--      8 `reserve` where Redis may be full, 9.. fields
-- Gives the revision of the change; 0 when the same request had made it before.
local no, context_revision = closed()
if no then return no end
local before, other = asked_before(KEYS[4], ARGV[6])
if other then return other end
if before then return 0 end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if ARGV[8] == 'reserve' then use_reserve() end

local revision = raise()
redis.call('HSET', KEYS[1], 'updated_at', ARGV[3], 'revision', revision, unpack(ARGV, 9))
remember(KEYS[4], ARGV[6], ARGV[7])
emit(revision, '{"kind":"context"}')
hint('context')
return revision
