-- Checks that records exist which a list names.
-- KEYS = list
-- ARGV = actor
--
-- `actor` is the one whose inbox the list is, '' for another list. After the arguments follow entries: keys of messages, or with
-- `jobs` what follows `job:` in keys.
-- Returns the findings.
local no = closed(false, not REPAIRS)
if no then return no end
local list = bare(KEYS.list)
local kind = redis.call('TYPE', KEYS.list).ok

local function is_named(entry)
  if kind == 'set' then return redis.call('SISMEMBER', KEYS.list, entry) == 1 end
  return kind == 'zset' and redis.call('ZSCORE', KEYS.list, entry)
end

local function exists(entry)
  local key = list == 'jobs' and own('job:' .. entry) or entry
  -- Asks for no key of another context, which may be elsewhere.
  return string.match(bare(key) or '', '^%l+:%d+:%d+$') and redis.call('EXISTS', key) == 1
end

for a = ARGV_NAMED + 1, #ARGV do
  local entry = ARGV[a]
  if is_named(entry) and not exists(entry) then
    local problem = 'names ' .. string.sub(bare(entry) or entry, 1, 80) .. ', which does not exist'
    if report('ENTRY_STALE', list, problem, 'the entry is removed') then
      if kind == 'set' then
        redis.call('SREM', KEYS.list, entry)
      elseif ARGV.actor ~= '' then
        take_from(ARGV.actor, entry)
      else
        redis.call('ZREM', KEYS.list, entry)
      end
    end
  end
end
return findings
