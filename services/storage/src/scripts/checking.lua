-- Shared functions of scripts that check records, behind the prelude.
-- ARGV = repair
--
-- `repair` is 1 if what can be repaired is to be repaired. A check that repairs nothing runs while the context is exported, too.

local REPAIRS = ARGV.repair == '1'
-- For each finding its code, the key that it is about without what the layout adds, the problem, the repair or '', and 1 if that was
-- made.
local findings = {}

-- Notes a finding. `repair` says what the repair does, nil where there is none. Returns true if it is to be made now.
local function report(code, key, problem, repair)
  local repairs = REPAIRS and repair ~= nil
  if repairs then use_reserve() end
  for _, text in ipairs({code, key, problem, repair or '', repairs and '1' or '0'}) do findings[#findings + 1] = text end
  return repairs
end

-- Returns a key without what the layout adds; nothing for a key of somebody else.
local function bare(key)
  local prefix = own('')
  if string.sub(key, 1, #prefix) == prefix then return string.sub(key, #prefix + 1) end
end
