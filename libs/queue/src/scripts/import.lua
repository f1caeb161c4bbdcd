-- Accepts a job of an old dispatcher, if its entry is still there. It has no coordinator, so only the dispatcher is answered.
-- KEYS = list queue jobs
-- ARGV = entry old_hash old_id key hash queue_max old_queue old_entry
--
-- `list` is the list with the entry: an old queue, or hero:foreign. `old_hash` and `old_id` are how its dispatcher knows the job,
-- `key` and `hash` how we do. `queue_max` is the maximum number of waiting jobs. `old_queue` is the list that it was pushed to,
-- `old_entry` the entry as it was there. After the arguments follow fields of the job's hash.
local entry, old, key, queue = ARGV.entry, ARGV.old_hash, ARGV.key, KEYS.queue
if redis.call('ZCARD', UNCLAIMED .. queue) >= tonumber(ARGV.queue_max) then return 'full' end
if redis.call('LREM', KEYS.list, 1, entry) == 0 then return 'gone' end
if redis.call('EXISTS', old) == 0 then return 'gone' end
-- Runs a job once that was pushed twice.
local before = redis.call('HGET', old, 'taken_as')
local state = before and redis.call('HGET', JOB .. before, 'state')
if state == 'queued' or state == 'started' then return 'twice' end
local time, seq = now(), redis.call('INCR', SEQ)
redis.call('HSET', old, 'taken_as', key, 'status', 'dispatched')
redis.call('HSET', JOB .. key, 'key', key, 'hash', ARGV.hash, 'coordinator', '', 'queue', queue, 'seq', seq,
  'state', 'queued', 'status', 'queued', 'queued_at', time, 'log_offset', 0, 'old_queue', ARGV.old_queue,
  'old_entry', ARGV.old_entry, 'old_hash', old, 'old_id', ARGV.old_id, unpack(ARGV, ARGV_NAMED + 1))
redis.call('ZADD', KEYS.jobs, '+inf', key)
stand_in_line(key, queue, seq)
redis.call('ZADD', UNCLAIMED .. queue, seq, key)
redis.call('SADD', QUEUES, queue)
redis.call('RPUSH', queue, key)
return 'taken'
