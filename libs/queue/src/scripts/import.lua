-- Takes a job of an old dispatcher in, if its entry is still there. It has no coordinator: nobody else is told.
-- KEYS: 1 <old queue>, or hero:foreign  2 <queue>  3 hero:jobs:<uid>
-- ARGV: 1 entry  2 its hash  3 its id  4 job key  5 content hash  6 most jobs that may wait
--       7 the list that it was pushed to  8 the entry as it stood there  9… fields of the job's hash
local entry, old, key, queue = ARGV[1], ARGV[2], ARGV[4], KEYS[2]
if redis.call('ZCARD', UNCLAIMED .. queue) >= tonumber(ARGV[6]) then return 'full' end
if redis.call('LREM', KEYS[1], 1, entry) == 0 then return 'gone' end
if redis.call('EXISTS', old) == 0 then return 'gone' end
-- One that was pushed twice runs once.
local before = redis.call('HGET', old, 'taken_as')
local state = before and redis.call('HGET', JOB .. before, 'state')
if state == 'queued' or state == 'started' then return 'twice' end
local time, seq = now(), redis.call('INCR', SEQ)
redis.call('HSET', old, 'taken_as', key, 'status', 'dispatched')
redis.call('HSET', JOB .. key, 'key', key, 'hash', ARGV[5], 'coordinator', '', 'queue', queue, 'seq', seq,
  'state', 'queued', 'status', 'queued', 'queued_at', time, 'log_offset', 0, 'old_queue', ARGV[7],
  'old_entry', ARGV[8], 'old_hash', old, 'old_id', ARGV[3], unpack(ARGV, 9))
redis.call('ZADD', KEYS[3], '+inf', key)
stand_in_line(key, queue, seq)
redis.call('ZADD', UNCLAIMED .. queue, seq, key)
redis.call('SADD', QUEUES, queue)
redis.call('RPUSH', queue, key)
return 'taken'
