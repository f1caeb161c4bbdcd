-- Puts a letter into the inboxes of actors, once; a copy of its own into each.
-- KEYS 4 msg_in, 5 letters, 6.. what it is recognized by
-- ARGV 5 the context's revision that was decided on, 6 the recipients' ids with spaces between them, 7 why it is refused, unless it
--      came before ('' for nothing), 8 what the keys of this context begin with, 9 how many bytes it has, 10 how much msg_in
--      does, 11 seconds to remember it, 12.. fields
-- Gives what became of it, and the key of the first copy: 1 it is kept, 2 it came before, 3 it is refused for that reason, 4 every
-- inbox is full; and the revision.
local no, context_revision = closed()
if no then return no end
for k = 6, #KEYS do
  local seen = redis.call('GET', KEYS[k])
  if seen then return {2, seen, 0} end
end
if context_revision ~= ARGV[5] then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if ARGV[7] ~= '' then return {3, '', 0} end
-- Who lets an inbox run full keeps nothing from the others.
local copies = {}
for actor in string.gmatch(ARGV[6], '%d+') do
  if has_place(actor, ARGV[9]) then
    local id, key = new_message(ARGV[8], '0')
    if not id then return refuse('IDS_EXHAUSTED', 'the context has no ids of received messages left') end
    copies[#copies + 1] = {actor, id, key}
  end
end
if #copies == 0 then return {4, '', 0} end

local revision = raise()
local first = 'message:0:' .. copies[1][2]
for _, copy in ipairs(copies) do
  local actor, id, key = unpack(copy)
  redis.call('HSET', key, unpack(ARGV, 12))
  redis.call('HSET', key, 'id', id, 'to', actor, 'revision', revision)
  put_in(actor, key, revision, ARGV[9])
  redis.call('ZADD', KEYS[5], revision, key)
  redis.call('LPUSH', KEYS[4], key)
  emit_message(revision, key, 'acknowledged')
  hint('inbox:' .. actor)
end
redis.call('LTRIM', KEYS[4], 0, tonumber(ARGV[10]) - 1)
for k = 6, #KEYS do redis.call('SET', KEYS[k], first, 'EX', ARGV[11]) end
return {1, first, revision}
