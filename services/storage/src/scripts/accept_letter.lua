-- Puts a letter into the inbox of an actor, once.
-- KEYS 4 inbox, 5 msg_in, 6 letters, 7.. what it is recognized by
-- ARGV 5 the context's revision that was decided on, 6 the recipient's id, 7 why it is refused, unless it came before ('' for
--      nothing), 8 what the keys of this context begin with, 9 how many bytes it has, 10 how much msg_in does,
--      11 seconds to remember it, 12.. fields
-- Gives what became of it, and its key: 1 it is kept, 2 it came before, 3 it is refused for that reason, 4 the inbox is
-- full; and the revision.
local no = closed()
if no then return no end
for k = 7, #KEYS do
  local seen = redis.call('GET', KEYS[k])
  if seen then return {2, seen, 0} end
end
if redis.call('HGET', KEYS[1], 'revision') ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if ARGV[7] ~= '' then return {3, '', 0} end
if not has_place(ARGV[6], ARGV[9]) then return {4, '', 0} end
local id, key = new_message(ARGV[8], '0')
if not id then return refuse('IDS_EXHAUSTED', 'the context has no ids of received messages left') end

local revision = raise()
local name = 'message:0:' .. id
redis.call('HSET', key, 'id', id, 'revision', revision, unpack(ARGV, 12))
put_in(ARGV[6], key, revision, ARGV[9])
redis.call('ZADD', KEYS[6], revision, key)
redis.call('LPUSH', KEYS[5], key)
redis.call('LTRIM', KEYS[5], 0, tonumber(ARGV[10]) - 1)
for k = 7, #KEYS do redis.call('SET', KEYS[k], name, 'EX', ARGV[11]) end
emit_message(revision, key, 'acknowledged')
hint('inbox:' .. ARGV[6])
return {1, name, revision}
