-- Begins to import a context whose id is marked for that, or tells how far its import is.
-- ARGV = context digest
--
-- `digest` is that of the frame with the manifest, which distinguishes exports of one context.
-- Returns how many frames are taken, and the digest of the last; 0 frames when the context is complete.
local known = redis.call('HMGET', KEYS.context, 'uid', 'state', 'import_frames', 'import_digest', 'import_manifest', 'emptied')
-- Removes the record of an earlier context of this id, of which nothing else is left.
if known[1] and known[6] and known[1] ~= ARGV.uid then
  redis.call('DEL', KEYS.context)
  known = {}
end
if not known[1] then
  redis.call('HSET', KEYS.context, 'id', ARGV.context, 'uid', ARGV.uid, 'state', 'importing', 'import_frames', 1,
    'import_digest', ARGV.digest, 'import_manifest', ARGV.digest)
  return {1, ARGV.digest}
end
if known[1] ~= ARGV.uid then return refuse('CONTEXT_EXISTS', 'context ' .. ARGV.context) end
if known[2] == 'active' then return {0, ''} end
if known[2] ~= 'importing' then return refuse('CONTEXT_DELETING', 'the context is being deleted') end
if known[5] ~= ARGV.digest then return refuse('IMPORT_UNDER_WAY', 'context ' .. ARGV.context) end
return {tonumber(known[3]), known[4]}
