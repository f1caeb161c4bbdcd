-- Puts a context in use whose import is complete.
local no = not_importing()
if no then return no end
if redis.call('HEXISTS', KEYS.context, 'admins') == 0 then return refuse('IMPORT_GONE', 'the export has no record of its context') end
-- Continues behind the last event: output that arrived during the export may have raised the change counter after it was read.
local last = read_last()
local latest_event = last and tonumber(string.match(last[1], '^%d+')) or 0
if latest_event > tonumber(redis.call('HGET', KEYS.ids, 'revision') or '0') then
  redis.call('HSET', KEYS.ids, 'revision', string.match(last[1], '^%d+'))
end
local revision = raise()
redis.call('HDEL', KEYS.context, 'import_frames', 'import_digest', 'import_manifest')
redis.call('HSET', KEYS.context, 'state', 'active', 'revision', revision)
emit(revision, '{"kind":"context"}')
hint('context')
return revision
