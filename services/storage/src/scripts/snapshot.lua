-- Shared functions of scripts for exports, behind the prelude.

-- Keeps the context frozen for the snapshot until `till`. Returns a refusal if the freeze has lapsed: the context may have changed.
local function keep(snapshot, till)
  local known = redis.call('HMGET', KEYS.context, 'snapshot', 'frozen_until')
  if known[1] ~= snapshot or tonumber(known[2] or '0') <= tonumber(ARGV.now) then
    return refuse('SNAPSHOT_GONE', 'the export took a pause that was too long')
  end
  use_reserve()
  redis.call('HSET', KEYS.context, 'frozen_until', till)
end
