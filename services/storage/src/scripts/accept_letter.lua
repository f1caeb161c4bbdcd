-- Stores a letter in the inboxes of actors, once; each inbox gets a separate copy.
-- KEYS = msg_in letters
-- ARGV = context_revision recipients refusal prefix bytes msg_in_max seen_secs
--
-- The decision was made on `context_revision` of the context. `recipients` are the ids of those actors, with spaces between;
-- `refusal` is the reason for which the letter is refused unless it came before, '' for none, and `prefix` what the keys of this
-- context begin with. The letter has `bytes` bytes, `msg_in` at most `msg_in_max` entries; a repeat is recognized for `seen_secs`.
-- After the keys follow those by which it is recognized, after the arguments its fields.
-- Returns the outcome, and the key of the first copy: 1 it is stored, 2 it came before, 3 it is refused for that reason, 4
-- every inbox is full; and the revision.
local no, context_revision = closed()
if no then return no end
for k = KEYS_NAMED + 1, #KEYS do
  local seen = redis.call('GET', KEYS[k])
  if seen then return {2, seen, 0} end
end
if context_revision ~= ARGV.context_revision then
  return refuse('CONTEXT_CHANGED', 'the context changed meanwhile')
end
if ARGV.refusal ~= '' then return {3, '', 0} end
-- Skips full inboxes: they keep nothing from the other recipients.
local copies = {}
for actor in string.gmatch(ARGV.recipients, '%d+') do
  if has_place(actor, ARGV.bytes) then
    local id, key = new_message(ARGV.prefix, '0')
    if not id then return refuse('IDS_EXHAUSTED', 'the context has no ids of received messages left') end
    copies[#copies + 1] = {actor, id, key}
  end
end
if #copies == 0 then return {4, '', 0} end

local revision = raise()
local first = 'message:0:' .. copies[1][2]
for _, copy in ipairs(copies) do
  local actor, id, key = unpack(copy)
  redis.call('HSET', key, unpack(ARGV, ARGV_NAMED + 1))
  redis.call('HSET', key, 'id', id, 'to', actor, 'revision', revision)
  put_in(actor, key, revision, ARGV.bytes)
  redis.call('ZADD', KEYS.letters, revision, key)
  redis.call('LPUSH', KEYS.msg_in, key)
  emit_message(revision, key, 'acknowledged')
  hint('inbox:' .. actor)
end
redis.call('LTRIM', KEYS.msg_in, 0, tonumber(ARGV.msg_in_max) - 1)
for k = KEYS_NAMED + 1, #KEYS do redis.call('SET', KEYS[k], first, 'EX', ARGV.seen_secs) end
return {1, first, revision}
