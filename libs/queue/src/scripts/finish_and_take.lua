-- Ends a running job, and gives its slot the next one of those that wait.
-- ARGV: 1 how many arguments of `take` follow, behind which are those of `finish`
-- Gives what `finish` gives and what `take` gives: no job where Redis has no room for what one makes.
local count = tonumber(ARGV[1])
local takes = is_roomy()
local ended = finish({unpack(ARGV, count + 2)})
return {ended, takes and take({unpack(ARGV, 2, count + 1)}) or {{}, 1, {}}}
