-- What every script that changes a context begins with.
-- KEYS 1 context, 2 ids, 3 events
-- ARGV 1 hint channel, 2 the context's uid ('' for any), 3 now in Unix seconds, 4 random bits of this change

local function refuse(code, message)
  return redis.error_reply(code .. ' ' .. message)
end

-- Why the context takes no changes; nothing when it does.
local function closed()
  local context = redis.call('HMGET', KEYS[1], 'uid', 'state')
  if not context[1] then return refuse('CONTEXT_GONE', 'the context does not exist') end
  if ARGV[2] ~= '' and context[1] ~= ARGV[2] then
    return refuse('CONTEXT_GONE', 'the context is another one by now')
  end
  if context[2] ~= 'active' then return refuse('CONTEXT_DELETING', 'the context is being deleted') end
end

-- The number of this change. Called once, after every check.
local function raise()
  return redis.call('HINCRBY', KEYS[2], 'revision', 1)
end

local emitted = 0
local function emit(revision, event)
  emitted = emitted + 1
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', 1000000, revision .. '-' .. emitted, 'e', event, 'b', ARGV[4])
end

-- `status` is nil for a flow that is gone.
local function emit_flow(revision, flow, status, generation)
  local quoted = status and ('"' .. status .. '"') or 'null'
  emit(revision, '{"kind":"flow","flow_id":' .. flow .. ',"status":' .. quoted .. ',"generation":' .. generation
    .. ',"time":' .. ARGV[3] .. '}')
end

-- Tells whoever listens that there is something to read, and which kind when it matters.
local function hint(kind)
  redis.call('PUBLISH', ARGV[1], kind)
end

-- The greatest id that 32 bits hold.
local ID_MAX = 4294967295
