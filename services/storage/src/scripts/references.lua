-- Shared functions of scripts that remove jobs, behind the prelude.

-- Takes the references of a job off blobs: every hash that its record, or its node, names as one.
local function dereference(blob_idle, job, texts)
  for _, text in ipairs(texts) do
    for hash in string.gmatch(text or '', 'sha256"?:"?(%x+)') do
      local refs = own('blob_refs:' .. hash)
      if #hash == 64 and redis.call('SREM', refs, job) == 1 and redis.call('EXISTS', refs) == 0 then
        redis.call('ZADD', blob_idle, ARGV.now, hash)
      end
    end
  end
end
