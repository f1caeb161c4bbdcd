-- Ends a running job, and gives its slot to the next waiting job.
-- ARGV = take_arguments
--
-- `take_arguments` is the number of arguments of `take` that follow it; after those follow the ones of `finish`.
-- Returns the answers of `finish` and `take`: no job where Redis has no room for a new one.
local count = tonumber(ARGV.take_arguments)
local takes = is_roomy()
local ended = finish({unpack(ARGV, ARGV_NAMED + count + 1)})
return {ended, takes and take({unpack(ARGV, ARGV_NAMED + 1, ARGV_NAMED + count)}) or {{}, 1, {}}}
