-- Prelude of every script that changes data outside contexts.
-- KEYS = ids events
-- ARGV = hint now bits
--
-- `hint` is the channel of hints, `now` in Unix seconds. `bits` are the random bits of this change, as 16 digits, followed by the
-- audit record as JSON if a principal asked for the change. After all other arguments follows the last event that this storage has
-- seen, as `<id of the entry> <random bits>`, '' for none.

local SEEN = table.remove(ARGV)

local function refuse(code, message)
  return redis.error_reply(code .. ' ' .. message)
end

-- Lets the rest of this script write even when Redis is at `maxmemory`: for writes that free memory, end something or keep alive
-- what exists. Redis refuses a script whose first write may take memory; this one takes none, and changes nothing.
local function use_reserve()
  redis.call('HDEL', KEYS.ids, '')
end

-- Returns a key of data outside contexts.
local function own(name)
  return string.match(KEYS.ids, '^(.*)ids$') .. name
end

-- Writes the audit record, if a principal asked for this change.
local function audit(revision)
  if #ARGV.bits == 16 then return end
  local deed, keep = cjson.decode(string.sub(ARGV.bits, 17)), 90 * 24 * 3600
  redis.call('XADD', own('audit'), 'MINID', '~', string.format('%.0f', math.max(0, tonumber(ARGV.now) - keep) * 1000), '*',
    'identity', deed.identity, 'action', deed.action, 'object', deed.object, 'revision', revision, 'request_id', deed.request_id)
end

-- Returns true if the request that `key` is for was carried out before; a refusal if it had another body then. Without a request
-- id there is no key.
local function asked_before(key, hash)
  local known = key and redis.call('HGET', key, 'hash')
  if not known then return false end
  if known ~= hash then return true, refuse('REQUEST_ID_REUSED', 'the request id came with another body before') end
  return true
end

-- Remembers a request with its answer.
local function remember(key, hash, secs, ...)
  if not key then return end
  redis.call('HSET', key, 'hash', hash, ...)
  redis.call('EXPIRE', key, secs)
end

local function change(event)
  local revision = redis.call('HINCRBY', KEYS.ids, 'revision', 1)
  audit(revision)
  redis.call('XADD', KEYS.events, 'MAXLEN', '~', 1000000, revision .. '-1', 'e', event, 'b', string.sub(ARGV.bits, 1, 16))
  -- Notifies caches of actors and contexts which of them changed.
  redis.call('PUBLISH', ARGV.hint, event)
  return revision
end

-- Returns true if the last event that this storage has seen is gone, other than by trimming: then Redis has lost changes.
local function has_gone_back()
  local id, bits = string.match(SEEN, '^(%d+%-%d+) (%x+)$')
  if not id then return false end
  local entry = redis.call('XRANGE', KEYS.events, id, id)[1]
  if entry then return entry[2][4] ~= bits end
  return redis.call('XLEN', KEYS.events) == 0 or #redis.call('XRANGE', KEYS.events, '-', id, 'COUNT', 1) > 0
end
if has_gone_back() then return refuse('STORE_WENT_BACK', 'a change is gone that was seen') end
