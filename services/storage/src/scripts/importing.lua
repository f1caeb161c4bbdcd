-- Shared functions of scripts for imports, behind the prelude.

-- Returns a refusal if the context is not the one that is being imported.
local function not_importing()
  local context = redis.call('HMGET', KEYS.context, 'uid', 'state')
  if context[1] ~= ARGV.uid or context[2] ~= 'importing' then
    return refuse('IMPORT_GONE', 'the import was given up, or is complete')
  end
end
