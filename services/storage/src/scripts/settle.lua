-- Ends the holds on messages.
-- KEYS = held dead_letters letters
--
-- After the keys follow the messages. After the arguments follow for each message the reason why it will not arrive, '' when the
-- receiver acknowledged it, and the flow that was made of it, 0 for none.
local no = closed()
if no then return no end
use_reserve()
local settled, revision = 0, nil
for m = 1, #KEYS - KEYS_NAMED do
  local key, problem, flow = KEYS[KEYS_NAMED + m], ARGV[ARGV_NAMED + 2 * m - 1], ARGV[ARGV_NAMED + 2 * m]
  if redis.call('ZREM', KEYS.held, key) == 1 then
    settled = settled + 1
    local is_message = is_hash(key)
    local message = is_message and redis.call('HMGET', key, 'open', 'recipient', 'status', 'logs')
    -- True for a delivered message whose jobs have all ended: the flow has settled it already.
    local is_said = is_message and problem == '' and message[3] == 'processed' and (tonumber(message[1]) or 1) <= 0
    local kept = is_message and not is_said and kept_in(key, KEYS.letters)
    -- True for a message that was refused before it was taken up.
    local is_raw = is_message and not is_said and not kept
    -- True if the message is not settled yet. The end of the flow that was made of it may have overtaken the answer about it; so
    -- may the ends of refused jobs.
    local is_open = kept and (message[3] == 'dispatched' or (kept == 'nodes' and message[3] == 'processed'))
    if is_raw or is_open then
      revision = revision or raise()
      local status, transport, line = 'acknowledged', message[2] and 'delivered' or 'read', 'acknowledged'
      if problem ~= '' then
        status, transport, line = 'error', 'failed', 'given up: ' .. problem
        redis.call('ZADD', KEYS.dead_letters, revision, key)
      elseif kept == 'nodes' and (tonumber(message[1] or '0') or 0) <= 0 then
        status = 'processed'
      end
      redis.call('HSET', key, 'status', status, 'error', problem, 'transport_status', transport, 'updated_at', ARGV.now,
        'revision', revision, 'logs', logged(message[4], line))
      -- Empties the nodes, which the jobs themselves hold: the message is not sent again.
      if kept == 'nodes' then redis.call('HSET', key, 'nodes', '[]') end
      if flow ~= '0' then redis.call('HSET', key, 'flow_id', flow) end
      if is_raw then
        redis.call('HSETNX', key, 'created_at', ARGV.now)
        redis.call('HSET', key, 'taken_revision', revision)
        if flow == '0' then redis.call('HDEL', key, 'flow_id') end
        -- Removes fields that only our messages have.
        redis.call('HDEL', key, 'open', 'recipient', 'addresses', 'job_keys')
        redis.call('ZADD', KEYS.letters, 'NX', revision, key)
      end
      -- Emits no event of a message with nodes: their own events tell.
      if kept ~= 'nodes' then emit_message(revision, key, status) end
      if kept == 'letters' and problem == '' and message[2] then done(revision, key) end
    end
  end
end
if emitted > 0 then hint('') end
return settled
