-- Prelude of every script that changes a context.
-- KEYS = context ids events
-- ARGV = hint uid now bits
--
-- `hint` is the channel of hints; `uid` that of the context, '' for any; `now` in Unix seconds. `bits` are the random bits of this
-- change, as 16 digits, followed by the audit record as JSON if a principal asked for the change. After all other arguments follow
-- 1 if the answer is to have the events of this change, and the last event that this storage has seen, as `<id of the entry>
-- <random bits>`, '' for none.

local BITS, SEEN = string.sub(ARGV.bits, 1, 16), table.remove(ARGV)
local IS_TOLD = table.remove(ARGV) == '1'

local function refuse(code, message)
  return redis.error_reply(code .. ' ' .. message)
end

-- Last entry of the events before this change, once it was read.
local last_before

local function read_last()
  last_before = last_before or redis.call('XREVRANGE', KEYS.events, '+', '-', 'COUNT', 1)[1]
  return last_before
end

-- Returns true if the last event that this storage has seen is gone, other than by trimming: then Redis has lost changes.
local function has_gone_back()
  local id, revision, bits = string.match(SEEN, '^((%d+)%-%d+) (%x+)$')
  if not id then return false end
  -- Tries the last entry first: mostly this storage has seen the last change.
  local entry = read_last()
  if not entry or string.match(entry[1], '^%d+') ~= revision then entry = redis.call('XRANGE', KEYS.events, id, id)[1] end
  if entry then return entry[2][4] ~= bits end
  return redis.call('XLEN', KEYS.events) == 0 or #redis.call('XRANGE', KEYS.events, '-', id, 'COUNT', 1) > 0
end

-- Returns a refusal if the context takes no changes; otherwise nothing, and its revision. With `removing`, the script may run in a
-- context that is being removed; with `frozen`, in one that is being exported.
local function closed(removing, frozen)
  local context = redis.call('HMGET', KEYS.context, 'uid', 'state', 'revision', 'frozen_until')
  if not context[1] then return refuse('CONTEXT_GONE', 'the context does not exist') end
  if ARGV.uid ~= '' and context[1] ~= ARGV.uid then
    return refuse('CONTEXT_GONE', 'the context is another one by now')
  end
  if removing then return nil, context[3] end
  if context[2] ~= 'active' then return refuse('CONTEXT_DELETING', 'the context is being deleted') end
  if context[4] and not frozen and tonumber(context[4]) > tonumber(ARGV.now) then
    return refuse('CONTEXT_FROZEN', 'the context is being exported')
  end
  if has_gone_back() then return refuse('STORE_WENT_BACK', 'a change is gone that was seen') end
  return nil, context[3]
end

-- Lets the rest of this script write even when Redis is at `maxmemory`: for writes that free memory, end something or keep alive
-- what exists. Redis refuses a script whose first write may take memory; this one takes none, and changes nothing.
local function use_reserve()
  redis.call('HDEL', KEYS.context, '')
end

-- Returns a key of this context.
local function own(name)
  return string.match(KEYS.context, '^(.*)context:') .. name
end

-- Writes the audit record, if a principal asked for this change. `revision` is 0 for a change without one.
local function audit(revision)
  if #ARGV.bits == 16 then return end
  local deed, keep = cjson.decode(string.sub(ARGV.bits, 17)), 90 * 24 * 3600
  redis.call('XADD', own('audit'), 'MINID', '~', string.format('%.0f', math.max(0, tonumber(ARGV.now) - keep) * 1000), '*',
    'identity', deed.identity, 'action', deed.action, 'object', deed.object, 'revision', revision, 'request_id', deed.request_id)
end

-- Refuses a count beyond its limit; returns nothing when it is within.
local function beyond(limit, most, asked)
  if asked <= tonumber(most) then return nil end
  return refuse('LIMIT_EXCEEDED', limit .. ' ' .. most .. ' ' .. string.format('%.0f', asked))
end

-- Number of this change, '' before it has one.
local latest = ''

-- Gives this change its number. Called once, after every check.
local function raise()
  latest = redis.call('HINCRBY', KEYS.ids, 'revision', 1)
  audit(latest)
  return latest
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

local emitted = 0
-- Ids and events that were written, after the id and the random bits of the last entry before, if the answer is to have them.
local written = {}
local function emit(revision, event)
  if IS_TOLD and #written == 0 then
    local last = read_last()
    written[1], written[2] = last and last[1] or '', last and last[2][4] or ''
  end
  emitted = emitted + 1
  local id = revision .. '-' .. emitted
  redis.call('XADD', KEYS.events, 'MAXLEN', '~', 1000000, id, 'e', event, 'b', BITS)
  if IS_TOLD then
    written[#written + 1] = id
    written[#written + 1] = event
  end
end

-- Notifies listeners that there is something to read: up to this change, or of which kind when that matters.
local function hint(kind)
  redis.call('PUBLISH', ARGV.hint, kind == '' and latest or kind)
end

-- Programs may have left anything where a message is expected.
local function is_hash(key)
  return redis.call('TYPE', key).ok == 'hash'
end

-- Greatest id that 32 bits hold.
local ID_MAX = 4294967295
