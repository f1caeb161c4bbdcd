-- Ends a running job, and gives its slot the next one of those that wait.
-- ARGV = take_arguments
--
-- `take_arguments` is how many arguments of `take` come behind it, and behind those the ones of `finish`.
-- Gives what `finish` gives and what `take` gives: no job where Redis has no room for what one makes.
local count = tonumber(ARGV.take_arguments)
local takes = is_roomy()
local ended = finish({unpack(ARGV, ARGV_NAMED + count + 1)})
return {ended, takes and take({unpack(ARGV, ARGV_NAMED + 1, ARGV_NAMED + count)}) or {{}, 1, {}}}
