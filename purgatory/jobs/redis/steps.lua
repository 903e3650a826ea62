-- Every change of jobs in Redis: a batch of steps, each as atomic as if it were alone. What a step
-- does with a job is the table of purgatory.jobs.model.transitions; the tests of the contract compare
-- the two.
--
-- KEYS are the indexes of one shard. The keys of buckets depend on what is stored, so that the caller
-- cannot declare them; they carry the shard's hash tag and lie in its slot, as a cluster requires.
--
--   at        hash  id -> place: "b:<bucket>" by due_ms; "f:<bucket>" by finished_ms
--   b:<n>     hash  id -> record of jobs that wait or run
--   f:<n>     hash  id -> record of finished jobs
--   d:<n>:<handler>  zset  due_ms of the jobs of a bucket and a handler that can be claimed
--   n:<handler>  zset  n of each d:<n>:<handler> that there is
--   handlers  set   handler of each n:<handler> that there is
--   held      zset  lease_until_ms of the leased jobs
--   finished  zset  finished_ms
--   on_key    zset  "key\0id", by name: undecided jobs on their keys that have not fired
--   by_key, by_handler, and one for each state: zset by name, for queries; in by_key concurrency
--             keys, too, as their owners gave them, behind a \2
--   blocked   zset  by name: jobs that are due and wait for a slot or for the end of a pause
--   dedupe    hash  dedupe key -> id of the undecided job that has it
--   quarantined  list  "id\0reason\0record" of corrupt records, the last few
--   slots     hash  id -> slot of the jobs that hold one: "handler" or "handler\1concurrency key"
--   slot_names  zset  "handler\0id" and "handler\1key\0id" of the same jobs, by name, to count them
--   q:<slot>  zset  due_ms of the jobs that wait for a slot; of "\2", of those of paused handlers
--   requests  hash  name of a request -> "id\0status\0fingerprint": the job that it added, replaced or
--                   kept; and ":id" -> the names of the last requests for it, 22 characters each
--   meta      hash  the width of buckets, the number of shards, how many of `quarantined` were
--                   dropped
--
-- A record's fields are separated by \0, which none of them can hold; the first is its format.
-- ARGV[1] is the settings, each further one a step, its fields separated likewise. The reply is a row
-- of netstrings ("length:text"): when the first of the added jobs is due, if that is soon, the changes, and a
-- result for each step. One string is read many times faster than a reply of as many parts.
--
-- Within a step, what is removed is removed first: a server that is full lets jobs end, as it
-- refuses only the first write of a script, and only one that needs room.

local AT, HANDLERS, HELD, FINISHED = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ON_KEY, BY_KEY, BY_HANDLER, DEDUPE, QUARANTINED = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local STATES = {
  waiting = KEYS[10], running = KEYS[11], done = KEYS[12], failed = KEYS[13], cancelled = KEYS[14],
}
local META, SLOTS, SLOT_NAMES, BLOCKED_IDS = KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local REQUESTS = KEYS[19]
local FINAL = {done = true, failed = true, cancelled = true}

local FORMAT, STATE, OUTCOME, DUE, DEADLINE, CEILING, CREATED, ATTEMPT = 1, 2, 3, 4, 5, 6, 7, 8
local EPOCH, LEASE, LEASED, LATENESS, ENDED, VERSION, MAX_ATTEMPTS = 9, 10, 11, 12, 13, 14, 15
local ON_FIRE, MISFIRE, DEDUPE_KEY, BLOCKED_BY, KEYS_OF, HANDLER, WORKER = 16, 17, 18, 19, 20, 21, 22
local FIRED_KEY, FIRED_JSON, ERROR, OWNER, PAYLOAD = 23, 24, 25, 26, 27
local NEEDED, FIRED_BEFORE, ROUND, ROUND_MS, CONCURRENCY_KEY, SLOT_MS = 28, 29, 30, 31, 32, 33
local TRACEPARENT = 34
local FIELDS = TRACEPARENT
local NUMBERS = {DUE, DEADLINE, CREATED, ATTEMPT, EPOCH, LEASE, VERSION, NEEDED, ROUND}

local call, floor, max, min = redis.call, math.floor, math.max, math.min
local concat, find, gmatch, gsub, sub =
  table.concat, string.find, string.gmatch, string.gsub, string.sub

local RECORD, ADD = string.rep('s', FIELDS), string.rep('s', 18)
local UP_TO_HANDLER = string.rep('s', HANDLER)

local function split(text)
  local parts, count, start = {}, 0, 1
  while true do
    local stop = find(text, '\0', start, true)
    count = count + 1
    if not stop then
      parts[count] = sub(text, start)
      return parts
    end
    parts[count] = sub(text, start, stop - 1)
    start = stop + 1
  end
end

-- The same for as many fields as `format` has, all in C.
local function unpack_fields(format, text)
  return {struct.unpack(format, text .. '\0')}
end

local settings = split(ARGV[1])
local TAG, WIDTH, SENDER = settings[1], tonumber(settings[2]), settings[4]
local HORIZON, MAX_ACTIVE = tonumber(settings[5]), tonumber(settings[6])
local PAST, AHEAD, MAX_BATCH = tonumber(settings[7]), tonumber(settings[8]), tonumber(settings[9])
local MAX_QUARANTINED, QUARANTINED_LENGTH = tonumber(settings[10]), tonumber(settings[11])
-- The server serves nobody else meanwhile: about a millisecond.
local COUNTED_AT_ONCE = 100
local DUE_AT_ONCE = 100
local now = tonumber(settings[3])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

-- What leases that begin now say. As text: converting a number costs more than the rest of a field.
local begun = tostring(now)

local changes, soonest, soonest_added, active = {}, nil, nil, nil
-- Buckets that are in the index: asked once for each batch.
local indexed = {}

-- What keeps a job that is due from being claimed.
local PAUSED, MAX_RUNNING, MAX_PER_KEY = 'paused', 'max_running', 'max_running_per_key'
local ALL_HANDLERS = '\2'
local paused

local function is_paused(job)
  paused = paused or call('HGET', META, 'paused') or ''
  return paused ~= ''
    and (find(paused, '\1' .. ALL_HANDLERS .. '\1', 1, true) or find(paused, '\1' .. job[HANDLER] .. '\1', 1, true))
end

local function pack(text)
  return #text .. ':' .. text
end

local function is_undecided(job)
  return job[STATE] == 'waiting' and job[OUTCOME] == ''
end

local function each_key(job)
  return gmatch(job[KEYS_OF], '[^\1]+')
end

local REQUEST_LENGTH, MAX_REQUESTS = 22, tonumber(settings[12])

-- Notes that a request has added, replaced or kept a job; the oldest of too many is forgotten.
local function note_request(request, id, status)
  local all = ':' .. id
  local names = call('HGET', REQUESTS, all) or ''
  if #names >= MAX_REQUESTS * REQUEST_LENGTH then
    call('HDEL', REQUESTS, sub(names, 1, REQUEST_LENGTH))
    names = sub(names, REQUEST_LENGTH + 1)
  end
  local name, fingerprint = sub(request, 1, REQUEST_LENGTH), sub(request, REQUEST_LENGTH + 2)
  local noted = id .. '\0' .. status .. '\0' .. fingerprint
  call('HSET', REQUESTS, name, noted, all, names .. name)
end

local function forget_requests(id)
  local all = ':' .. id
  local names = call('HGET', REQUESTS, all)
  if names then
    for start = 1, #names, REQUEST_LENGTH do
      call('HDEL', REQUESTS, sub(names, start, start + REQUEST_LENGTH - 1))
    end
    call('HDEL', REQUESTS, all)
  end
end

local OWNER_DIGITS = string.rep('[0-9a-f]', 16)

-- What a concurrency key is in BY_KEY; nil if there is none.
local function listed_key(job)
  local key = job[CONCURRENCY_KEY]
  return key ~= '' and '\2' .. gsub(key, '^~' .. OWNER_DIGITS .. '~(.)', '%1') or nil
end

local function bucket_of(place)
  return sub(place, 3)
end

local function place_of(job)
  if FINAL[job[STATE]] then
    return 'f:' .. floor(job[ENDED] / WIDTH)
  end
  return 'b:' .. floor(job[DUE] / WIDTH)
end

local function encode(job)
  return concat(job, '\0', 1, FIELDS)
end

local function found(job)
  return job.id .. '\0' .. encode(job)
end

local function parse(text)
  local is_long_enough, job = pcall(unpack_fields, RECORD, text)
  if not is_long_enough or job[FIELDS + 1] ~= #text + 2 or job[FORMAT] ~= '1' then
    return nil, 'it has not the fields of a job'
  end
  if not STATES[job[STATE]] then
    return nil, 'its state is unknown'
  end
  -- Operators, not functions: each job passes here several times.
  for index = 1, #NUMBERS do
    local field = NUMBERS[index]
    local number = tonumber(job[field])
    if not number or number % 1 ~= 0 or number < 0 or number > 1e14 then
      return nil, 'field ' .. field .. ' is not a number'
    end
    job[field] = number
  end
  if FINAL[job[STATE]] ~= (tonumber(job[ENDED]) and true) then
    return nil, 'its state and the time it finished do not fit'
  end
  return job
end

-- What `add` puts into sorted sets, for all adds in a row at once: {key = {score, member, ...}}.
local pending, pending_count = {}, 0
local is_adding = false

local function flush()
  for key, members in pairs(pending) do
    call('ZADD', key, unpack(members))
  end
  pending, pending_count, is_adding = {}, 0, false
end

local function put(key, score, member)
  if not is_adding then
    call('ZADD', key, score, member)
    return
  end
  local members = pending[key]
  if not members then
    members = {}
    pending[key] = members
  end
  local count = #members
  members[count + 1], members[count + 2] = score, member
  pending_count = pending_count + 1
  -- As many values as one call may have.
  if pending_count == 2000 then
    flush()
    is_adding = true
  end
end

local function leave_due(id, handler, bucket)
  local name = bucket .. ':' .. handler
  local key, buckets = TAG .. 'd:' .. name, TAG .. 'n:' .. handler
  if call('ZREM', key, id) == 1 and call('EXISTS', key) == 0 then
    indexed[name] = nil
    call('ZREM', buckets, bucket)
    if call('EXISTS', buckets) == 0 then
      call('SREM', HANDLERS, handler)
    end
  end
end

local function join_due(id, handler, due_ms)
  local bucket = floor(due_ms / WIDTH)
  local name = bucket .. ':' .. handler
  put(TAG .. 'd:' .. name, due_ms, id)
  if not indexed[name] then
    call('ZADD', TAG .. 'n:' .. handler, bucket, bucket)
    call('SADD', HANDLERS, handler)
    indexed[name] = true
  end
end

local function leave_keys(job)
  for key in each_key(job) do
    call('ZREM', ON_KEY, key .. '\0' .. job.id)
  end
  local slot = job[DEDUPE_KEY]
  if slot ~= '' and call('HGET', DEDUPE, slot) == job.id then
    call('HDEL', DEDUPE, slot)
  end
end

local function join_keys(job)
  for key in each_key(job) do
    local member = key .. '\0' .. job.id
    put(ON_KEY, 0, member)
    put(BY_KEY, 0, member)
  end
  if job[DEDUPE_KEY] ~= '' then
    call('HSET', DEDUPE, job[DEDUPE_KEY], job.id)
  end
  local listed = listed_key(job)
  if listed then
    put(BY_KEY, 0, listed .. '\0' .. job.id)
  end
end

local function leave_queries(job)
  call('ZREM', BY_HANDLER, job[HANDLER] .. '\0' .. job.id)
  local listed = listed_key(job)
  if listed then
    call('ZREM', BY_KEY, listed .. '\0' .. job.id)
  end
  for key in each_key(job) do
    call('ZREM', BY_KEY, key .. '\0' .. job.id)
  end
end

-- Slots: "handler", or "handler\1concurrency key".
local function slot_of(job)
  local key = job[CONCURRENCY_KEY]
  return key == '' and job[HANDLER] or job[HANDLER] .. '\1' .. key
end

local PAUSED_QUEUE = TAG .. 'q:' .. ALL_HANDLERS

local function queue_of(job)
  if job[BLOCKED_BY] == PAUSED then
    return PAUSED_QUEUE
  end
  return TAG .. 'q:' .. (job[BLOCKED_BY] == MAX_RUNNING and job[HANDLER] or slot_of(job))
end

local function count_slots(slot)
  return call('ZLEXCOUNT', SLOT_NAMES, '[' .. slot .. '\0', '(' .. slot .. '\1')
end

local function take_slot(job)
  local slot = slot_of(job)
  call('HSET', SLOTS, job.id, slot)
  call('ZADD', SLOT_NAMES, 0, job[HANDLER] .. '\0' .. job.id, 0, slot .. '\0' .. job.id)
end

-- Returns the slot that a job has left; nil if it had none.
local function leave_slot(id)
  local slot = call('HGET', SLOTS, id)
  if not slot then
    return nil
  end
  call('HDEL', SLOTS, id)
  call('ZREM', SLOT_NAMES, gsub(slot, '\1.*', '') .. '\0' .. id, slot .. '\0' .. id)
  return slot
end

local hand_over, move_up

-- Its entries in the indexes by key and handler stay, since its key and handler are unknown; a step
-- that finds them there removes them. So does a claim with what is due.
local function quarantine(id, place, text, reason)
  -- The step may be one that reads.
  require_rights()
  flush()
  call('ZREM', HELD, id)
  call('ZREM', FINISHED, id)
  call('ZREM', BLOCKED_IDS, id)
  call('ZREM', PAUSED_QUEUE, id)
  for _, index in pairs(STATES) do
    call('ZREM', index, id)
  end
  call('HDEL', TAG .. place, id)
  call('HDEL', AT, id)
  forget_requests(id)
  local left = leave_slot(id)
  local over = call('LLEN', QUARANTINED) + 1 - MAX_QUARANTINED
  if over > 0 then
    call('LTRIM', QUARANTINED, over, -1)
    call('HINCRBY', META, 'dropped', over)
  end
  call('RPUSH', QUARANTINED, id .. '\0' .. reason .. '\0' .. sub(text, 1, QUARANTINED_LENGTH))
  if left then
    hand_over(left)
  end
end

local function read(id)
  local place = call('HGET', AT, id)
  if not place then
    return nil
  end
  local text = call('HGET', TAG .. place, id)
  local job, reason
  if text then
    job, reason = parse(text)
  else
    reason = 'it is not in its bucket'
  end
  if not job then
    quarantine(id, place, text or '', reason)
    return nil
  end
  job.id, job.place, job.was, job.was_of = id, place, job[STATE], job[HANDLER]
  job.was_undecided = is_undecided(job)
  job.had_slot, job.was_blocked = job[SLOT_MS] ~= '', job[BLOCKED_BY] ~= ''
  job.queue = job.was_blocked and queue_of(job)
  if job[BLOCKED_BY] == MAX_RUNNING and job[CONCURRENCY_KEY] ~= '' then
    job.queued_for = slot_of(job)
  end
  return job
end

local function note(job)
  local due = ''
  local is_free = not FINAL[job[STATE]] and job[LEASE] == 0 and job[BLOCKED_BY] == ''
  if is_free and job[DUE] <= now + HORIZON then
    due = job[DUE]
    soonest = min(soonest or due, due)
  end
  return due
end

-- Returns the slot that the job has left, if any.
local function save(job)
  local left
  leave_due(job.id, job.was_of, bucket_of(job.place))
  call('ZREM', HELD, job.id)
  if job.queue then
    call('ZREM', job.queue, job.id)
    job.queue = nil
  end
  if job.was_blocked and job[BLOCKED_BY] == '' then
    call('ZREM', BLOCKED_IDS, job.id)
  end
  if job.had_slot and job[SLOT_MS] == '' then
    left = leave_slot(job.id)
  end
  if job.was_undecided and not is_undecided(job) then
    leave_keys(job)
  end
  local place = place_of(job)
  if job.place ~= place then
    call('HDEL', TAG .. job.place, job.id)
    call('HSET', AT, job.id, place)
    job.place = place
  end
  if job.was ~= job[STATE] then
    call('ZREM', STATES[job.was], job.id)
    call('ZADD', STATES[job[STATE]], 0, job.id)
    job.was = job[STATE]
  end
  call('HSET', TAG .. place, job.id, encode(job))
  if FINAL[job[STATE]] then
    call('ZADD', FINISHED, job[ENDED], job.id)
  elseif job[BLOCKED_BY] ~= '' then
    job.queue = queue_of(job)
    call('ZADD', job.queue, job[DUE], job.id)
  elseif job[LEASE] > 0 then
    call('ZADD', HELD, job[LEASE], job.id)
  else
    join_due(job.id, job[HANDLER], job[DUE])
  end
  if job[SLOT_MS] ~= '' and not job.had_slot then
    take_slot(job)
  end
  if job[BLOCKED_BY] ~= '' then
    call('ZADD', BLOCKED_IDS, 0, job.id)
  end
  job.was_undecided, job.had_slot = is_undecided(job), job[SLOT_MS] ~= ''
  job.was_blocked, job.was_of = job[BLOCKED_BY] ~= '', job[HANDLER]
  return left
end

local function announce(job)
  changes[#changes + 1] = job.id .. '\0' .. note(job)
end

local function keep(job)
  local passed = job.queue and job.queued_for
  local left = save(job)
  announce(job)
  if left then
    hand_over(left)
  elseif passed and not job.queue then
    move_up(passed)
  end
end

-- Returns the job that waits for a slot and is due first; nil if there is none.
local function first_blocked(slot)
  local queue = TAG .. 'q:' .. slot
  while true do
    local id = call('ZRANGE', queue, 0, 0)[1]
    if not id then
      return nil
    end
    local job = read(id)
    if job and job.queue == queue then
      return job
    end
    -- Its record was corrupt.
    call('ZREM', queue, id)
  end
end

local function unblock(job)
  job[EPOCH], job[BLOCKED_BY], job[SLOT_MS] = job[EPOCH] + 1, '', now
  save(job)
  announce(job)
end

-- Lets a job wait for a slot: it leaves the one that it holds.
local function block(job, by)
  job[EPOCH], job[LEASE], job[BLOCKED_BY], job[SLOT_MS] = job[EPOCH] + 1, 0, by, ''
  local left = save(job)
  announce(job)
  if left and by == MAX_PER_KEY then
    -- Too many for its key, by these bounds, but not for its handler.
    hand_over(job[HANDLER])
  end
end

-- Lets the first job that waits because of a key wait for any slot of the handler: one of its key
-- has left its slot, or that queue, and there may be no other that would.
function move_up(slot)
  local first = first_blocked(slot)
  if first then
    block(first, MAX_RUNNING)
  end
end

-- Gives a slot that became free to the job that waits for it and is due first.
function hand_over(slot)
  local handler = gsub(slot, '\1.*', '')
  if slot ~= handler then
    move_up(slot)
  end
  local first = first_blocked(handler)
  if first then
    unblock(first)
  end
end

-- Gives the slots that `bound` allows to jobs that wait for them.
local function fill_slots(handler, bound)
  local room = bound.maximum and bound.maximum - count_slots(handler) or MAX_BATCH
  while room > 0 do
    local first = first_blocked(handler)
    if not first then
      return
    end
    unblock(first)
    room = room - 1
  end
end

-- Lets a job wait for the end of the pause of its handler, with the slot that it has.
local function pause(job)
  job[EPOCH], job[LEASE], job[BLOCKED_BY] = job[EPOCH] + 1, 0, PAUSED
  keep(job)
end

-- Returns what keeps a job from having a slot; nil if nothing does.
local function blocked_by(job, bound)
  local own = job[SLOT_MS] == '' and 0 or 1
  if job[CONCURRENCY_KEY] ~= '' and bound.per_key then
    if count_slots(slot_of(job)) - own >= bound.per_key then
      return MAX_PER_KEY
    end
  end
  if bound.maximum and count_slots(job[HANDLER]) - own >= bound.maximum then
    return MAX_RUNNING
  end
end

local function change(job)
  job[VERSION] = job[VERSION] + 1
  keep(job)
end

local function free(job)
  job[EPOCH] = job[EPOCH] + 1
  job[LEASE], job[SLOT_MS], job[BLOCKED_BY] = 0, '', ''
end

-- Ends a job for its holder, which keeps its epoch: the same step may come again.
local function finish(job, state)
  job[STATE], job[ENDED], job[LEASE], job[SLOT_MS] = state, now, 0, ''
  change(job)
end

local function held(id, epoch)
  local job = read(id)
  if job and job[EPOCH] == tonumber(epoch) and job[LEASE] > 0 then
    return job
  end
end

-- Returns nil for a deadline too far in the past, or ahead.
local function resolve(mode, ms)
  local deadline = tonumber(ms) + (mode == 'delay' and now or 0)
  if now - deadline > PAST or deadline - now > AHEAD then
    return nil
  end
  return max(deadline, now)
end

local function under(job, deadline)
  local ceiling = tonumber(job[CEILING])
  return ceiling and min(ceiling, deadline) or deadline
end

local function cancel(job)
  free(job)
  job[STATE], job[ENDED] = 'cancelled', now
  if job[OUTCOME] == '' then
    job[OUTCOME] = 'cancelled'
  end
  change(job)
end

-- Returns the undecided jobs on a key, one at a time; other entries are removed.
local function next_on_key(key)
  while true do
    local members = call('ZRANGEBYLEX', ON_KEY, '[' .. key .. '\0', '(' .. key .. '\1', 'LIMIT', 0, 1)
    if #members == 0 then
      return nil
    end
    require_rights()
    local job = read(sub(members[1], #key + 2))
    if job and is_undecided(job) then
      return job
    end
    call('ZREM', ON_KEY, members[1])
  end
end

-- Jobs whose lease ran out can be claimed again. Their records stay: until another worker claims a
-- job, the claim is good. In bounded batches, for a worker that held very many.
local function take_back()
  for _, id in ipairs(call('ZRANGEBYSCORE', HELD, '-inf', now, 'LIMIT', 0, 5 * MAX_BATCH)) do
    local job = read(id)
    call('ZREM', HELD, id)
    if job then
      join_due(id, job[HANDLER], job[DUE])
    end
  end
end

-- By how much clocks of one store may differ.
local CLOCK_SLACK = 1000

-- Ends leases that began later than now, of those that end last and after `after_ms`.
local function end_leases(after_ms)
  local ids = call(
    'ZREVRANGEBYSCORE', HELD, '+inf', '(' .. after_ms, 'LIMIT', 0, MAX_BATCH)
  for _, id in ipairs(ids) do
    local job = read(id)
    if job and job[LEASE] > now and (tonumber(job[LEASED]) or 0) > now + CLOCK_SLACK then
      job[LEASE] = now
      save(job)
    end
  end
end

-- Names of handlers in a field of a step; nil for all.
local function names_in(field)
  if field == '' then
    return nil
  end
  local names = {}
  for name in gmatch(field, '[^\1]+') do
    names[#names + 1] = name
  end
  return names
end

-- Lets `head` name the next job of its handler that is due by `until_ms`; nil if there is none.
-- Those that it has named stay where they are if `stays`, and have left it otherwise.
local function next_due(head, until_ms, stays)
  head.at = head.at + 2
  while not head.found[head.at] do
    local buckets = TAG .. 'n:' .. head.handler
    local bucket = call('ZRANGE', buckets, head.rank, head.rank)[1]
    if not bucket or bucket * WIDTH > until_ms then
      return nil
    end
    head.found, head.at, head.bucket = call(
      'ZRANGEBYSCORE', TAG .. 'd:' .. bucket .. ':' .. head.handler, '-inf', until_ms,
      'WITHSCORES', 'LIMIT', head.skipped, DUE_AT_ONCE), 1, bucket
    if not head.found[1] then
      head.rank, head.skipped = head.rank + 1, 0
    elseif stays then
      head.skipped = head.skipped + DUE_AT_ONCE
    end
  end
  head.id, head.due = head.found[head.at], tonumber(head.found[head.at + 1])
  return head
end

-- Calls `take` with the id, due_ms, handler and bucket of each job of these handlers, or of all,
-- that can be claimed and is due by `until_ms`, the first one first, until it returns false.
local function each_due(names, until_ms, stays, take)
  take_back()
  local heads = {}
  for _, name in ipairs(names or call('SMEMBERS', HANDLERS)) do
    local head = {handler = name, found = {}, at = -1, rank = 0, skipped = 0}
    heads[#heads + 1] = next_due(head, until_ms, stays)
  end
  while #heads > 0 do
    local index, head = 1, heads[1]
    for at = 2, #heads do
      local other = heads[at]
      if other.due < head.due or other.due == head.due and other.id < head.id then
        index, head = at, other
      end
    end
    if not take(head) then
      return
    end
    if not next_due(head, until_ms, stays) then
      table.remove(heads, index)
    end
  end
end

-- The same with up to `limit` jobs; each leaves what is due, unless `take` returns false.
local function each_free(names, until_ms, limit, take)
  local count = 0
  each_due(names, until_ms, false, function(head)
    if count == limit then
      return false
    end
    local job = read(head.id)
    if job and job[LEASE] <= now and job[HANDLER] == head.handler then
      count = count + 1
      return take(job)
    end
    leave_due(head.id, head.handler, head.bucket)
    if job and job[LEASE] > now then
      -- The clock went back.
      call('ZADD', HELD, job[LEASE], job.id)
    end
    return true
  end)
end

-- Ids of an index by name, from the highest down.
local function below(index, prefix, after, count)
  local top, bottom = '+', '-'
  if prefix ~= '' then
    top, bottom = '(' .. prefix .. '\1', '[' .. prefix .. '\0'
    prefix = prefix .. '\0'
  end
  if after ~= '' then
    top = '(' .. prefix .. after
  end
  local members = call('ZREVRANGEBYLEX', index, top, bottom, 'LIMIT', 0, count)
  for index, member in ipairs(members) do
    members[index] = sub(member, #prefix + 1)
  end
  return members
end

local function below_in_any_state(after, count)
  local ids = {}
  for _, index in pairs(STATES) do
    for _, id in ipairs(below(index, '', after, count)) do
      ids[#ids + 1] = id
    end
  end
  table.sort(ids, function(one, other) return one > other end)
  for index = #ids, count + 1, -1 do
    ids[index] = nil
  end
  return ids
end

local steps = {}

-- This and `add` return the result, and the id of the job if one was added, replaced or kept.
local function add_to(rival, step)
  if step[6] == 'keep' then
    return 'kept\0' .. found(rival), rival.id
  elseif step[6] == 'error' then
    return 'duplicate\0' .. found(rival)
  end
  flush()
  leave_keys(rival)
  leave_queries(rival)
  local deadline = resolve(step[3], step[4])
  if rival[CEILING] == '' and step[5] ~= '' then
    rival[CEILING] = now + step[5]
  end
  free(rival)
  deadline = under(rival, deadline)
  rival[DEADLINE], rival[DUE] = deadline, deadline
  rival[MAX_ATTEMPTS], rival[ON_FIRE], rival[MISFIRE] = step[7], step[8], step[9]
  rival[KEYS_OF], rival[HANDLER], rival[PAYLOAD] = step[11], step[12], step[13]
  rival[OWNER] = step[15]
  rival[NEEDED], rival[FIRED_BEFORE] = tonumber(step[16]) or 1, ''
  rival[CONCURRENCY_KEY] = step[17]
  rival[TRACEPARENT] = gsub(step[18], 'room$', '')
  change(rival)
  join_keys(rival)
  call('ZADD', BY_HANDLER, 0, rival[HANDLER] .. '\0' .. rival.id)
  return 'replaced\0' .. found(rival), rival.id
end

local function add(step)
  local id = step[2]
  local known = read(id)
  if known then
    return 'kept\0' .. found(known), id
  end
  local deadline = resolve(step[3], step[4])
  if not deadline then
    return 'deadline\0' .. now
  end
  local slot = step[10]
  local rival = slot ~= '' and call('HGET', DEDUPE, slot)
  rival = rival and read(rival)
  if rival and is_undecided(rival) and rival[DEDUPE_KEY] == slot then
    return add_to(rival, step)
  end
  active = active or call('ZCARD', STATES.waiting) + call('ZCARD', STATES.running)
  if active >= MAX_ACTIVE and sub(step[18], -4) ~= 'room' then
    return 'full'
  end
  local ceiling = ''
  if step[5] ~= '' then
    ceiling = now + step[5]
    deadline = min(ceiling, deadline)
  end
  local job = {
    '1', 'waiting', '', deadline, deadline, ceiling, now, '0', '0', '0', '0', '', '', '1',
    step[7], step[8], step[9], slot, '', step[11], step[12], '', '', '', '', step[15], step[13],
    tonumber(step[16]) or 1, '', 0, '', step[17], '', (gsub(step[18], 'room$', '')),
  }
  -- Compared with numbers below; written once.
  job[LEASE] = 0
  job.id, job.place = id, place_of(job)
  call('HSET', TAG .. job.place, id, encode(job))
  call('HSET', AT, id, job.place)
  join_due(id, step[12], deadline)
  put(STATES.waiting, 0, id)
  put(BY_HANDLER, 0, step[12] .. '\0' .. id)
  join_keys(job)
  active = active + 1
  local due = note(job)
  if due ~= '' then
    soonest_added = min(soonest_added or due, due)
  end
  return 'added\0' .. now, id
end

function steps.add(step)
  local request = step[14]
  if request == '' then
    return (add(step))
  end
  local noted = call('HGET', REQUESTS, sub(request, 1, REQUEST_LENGTH))
  if noted then
    local id, status, fingerprint = unpack(split(noted))
    local job = read(id)
    if job and fingerprint == sub(request, REQUEST_LENGTH + 2) then
      return 'repeated\0' .. status .. '\0' .. found(job)
    elseif job then
      return 'reused\0' .. found(job)
    end
  end
  local result, id = add(step)
  if id then
    note_request(request, id, sub(result, 1, find(result, '\0', 1, true) - 1))
  end
  return result
end

-- The id of the job of an earlier request, and the fingerprint of that.
function steps.requested(step)
  local noted = call('HGET', REQUESTS, step[2])
  if not noted then
    return ''
  end
  local id, _, fingerprint = unpack(split(noted))
  return id .. '\0' .. fingerprint
end

-- Fires an undecided job by a key that it waits on: it only counts while the job needs others, too.
local function fire(job, key, value)
  if job[NEEDED] > 1 then
    local _, separators = gsub(job[FIRED_BEFORE], '\1', '')
    local count = job[FIRED_BEFORE] == '' and 0 or separators + 1
    if count + 1 < job[NEEDED] then
      call('ZREM', ON_KEY, key .. '\0' .. job.id)
      job[FIRED_BEFORE] = (count == 0 and '' or job[FIRED_BEFORE] .. '\1') .. key
      return change(job)
    end
  end
  free(job)
  job[OUTCOME], job[FIRED_KEY], job[FIRED_JSON] = 'fired', key, value
  if job[ON_FIRE] == 'cancel' then
    job[STATE], job[ENDED] = 'cancelled', now
  else
    job[DUE] = now
  end
  change(job)
end

function steps.fire(step)
  local key, limit, run, cancelled, counted = step[2], tonumber(step[4]), {}, {}, {}
  local job = next_on_key(key)
  while job and #run + #cancelled + #counted < limit do
    fire(job, key, step[3])
    local ids = is_undecided(job) and counted or FINAL[job[STATE]] and cancelled or run
    ids[#ids + 1] = job.id
    job = next_on_key(key)
  end
  return concat({
    job and '1' or '', concat(run, '\1'), concat(cancelled, '\1'), concat(counted, '\1'),
  }, '\0')
end

function steps.fire_job(step)
  local job = read(step[2])
  if not job then
    return ''
  end
  for index = 4, #step - 1, 2 do
    local key = step[index]
    local is_open = is_undecided(job) and job[ROUND] == tonumber(step[3]) and call('ZSCORE', ON_KEY, key .. '\0' .. job.id)
    if is_open then
      fire(job, key, step[index + 1])
    end
  end
  return found(job)
end

function steps.cancel_for_key(step)
  local key, limit, cancelled = step[2], tonumber(step[3]), {}
  local job = next_on_key(key)
  while job and #cancelled < limit do
    cancel(job)
    cancelled[#cancelled + 1] = job.id
    job = next_on_key(key)
  end
  return (job and '1' or '') .. '\0\0' .. concat(cancelled, '\1') .. '\0'
end

-- Returns the job, if it is stored and at `version` or that is empty; else nil and the result.
local function at_version(id, version)
  local job = read(id)
  if not job then
    return nil, 'missing'
  end
  if version ~= '' and job[VERSION] ~= tonumber(version) then
    return nil, 'changed\0' .. found(job)
  end
  return job
end

function steps.cancel(step)
  local job, error_result = at_version(step[2], step[3])
  if not job then
    return error_result
  end
  if job[STATE] == 'waiting' or job[STATE] == 'running' and job[BLOCKED_BY] ~= '' then
    cancel(job)
  elseif job[STATE] ~= 'cancelled' then
    return 'conflict\0' .. found(job)
  end
  return 'done\0' .. found(job)
end

function steps.reschedule(step)
  local job, error_result = at_version(step[2], step[5])
  if not job then
    return error_result
  end
  if not is_undecided(job) then
    return 'conflict\0' .. found(job)
  end
  local deadline = resolve(step[3], step[4])
  if not deadline then
    return 'deadline\0' .. now
  end
  free(job)
  deadline = under(job, deadline)
  job[DEADLINE], job[DUE] = deadline, deadline
  change(job)
  return 'done\0' .. found(job)
end

function steps.run_now(step)
  local job, error_result = at_version(step[2], step[3])
  if not job then
    return error_result
  end
  if job[STATE] ~= 'waiting' then
    return 'conflict\0' .. found(job)
  end
  if job[DUE] > now then
    free(job)
    job[DUE] = now
    change(job)
  end
  return 'done\0' .. found(job)
end

function steps.retry(step)
  local job, error_result = at_version(step[2], step[3])
  if not job then
    return error_result
  end
  if job[STATE] ~= 'failed' then
    return 'conflict\0' .. found(job)
  end
  call('ZREM', FINISHED, job.id)
  free(job)
  job[STATE], job[DUE], job[ATTEMPT], job[ENDED] = 'waiting', now, 0, ''
  change(job)
  return 'done\0' .. found(job)
end

-- Those that are paused: "\1one\1two\1", \2 for all.
function steps.pause(step)
  local name = step[2] == '' and ALL_HANDLERS or step[2]
  local names = call('HGET', META, 'paused') or '\1'
  if not find(names, '\1' .. name .. '\1', 1, true) then
    call('HSET', META, 'paused', names .. name .. '\1')
  end
  paused = nil
  return ''
end

function steps.resume(step)
  local name = step[2] == '' and ALL_HANDLERS or step[2]
  local names = call('HGET', META, 'paused') or '\1'
  local first, last = find(names, '\1' .. name .. '\1', 1, true)
  -- A step that goes on does not end a pause that has begun since.
  if first and step[4] == '' then
    names = sub(names, 1, first) .. sub(names, last + 1)
    if names == '\1' then
      call('HDEL', META, 'paused')
    else
      call('HSET', META, 'paused', names)
    end
  end
  paused = nil
  -- A batch behind the last one that stays paused: those of other handlers may be very many.
  local limit, count, last = tonumber(step[3]), 0, step[4]
  local rank = last ~= '' and call('ZRANK', PAUSED_QUEUE, last)
  rank = rank and rank + 1 or 0
  local ids = call('ZRANGE', PAUSED_QUEUE, rank, rank + MAX_BATCH - 1)
  local is_end = #ids < MAX_BATCH
  for _, id in ipairs(ids) do
    if count == limit then
      is_end = false
      break
    end
    local job = read(id)
    if job and is_paused(job) then
      last = id
    elseif job then
      job[EPOCH], job[BLOCKED_BY] = job[EPOCH] + 1, ''
      keep(job)
      count = count + 1
    end
  end
  return count .. '\0' .. (is_end and '' or '1') .. '\0' .. last
end

function steps.paused()
  local names = call('HGET', META, 'paused') or ''
  return names .. '\0' .. call('ZCARD', PAUSED_QUEUE)
end

-- A job that is due, and was not missed: for that, its worker looks first.
local function needs_slot(job)
  return job[SLOT_MS] == '' and job[DUE] <= now
    and not (is_undecided(job) and job[MISFIRE] ~= 'run')
end

function steps.claim(step)
  local jobs, bounds, is_cut, limit = {}, {}, '', tonumber(step[4])
  local names = names_in(step[6])
  for index = 8, #step, 3 do
    local bound = {maximum = tonumber(step[index + 1]), per_key = tonumber(step[index + 2])}
    bounds[step[index]] = bound
    fill_slots(step[index], bound)
  end
  local clock = tonumber(step[7])
  if clock and now >= clock - CLOCK_SLACK then
    end_leases(now + step[5])
  end
  each_free(names, now + step[3], limit, function(job)
    if is_paused(job) then
      is_cut = '1'
      pause(job)
      return true
    end
    local bound = bounds[job[HANDLER]]
    if bound and needs_slot(job) then
      local by = blocked_by(job, bound)
      if by then
        block(job, by)
        is_cut = '1'
        return true
      end
      job[SLOT_MS] = now
    end
    job[EPOCH], job[WORKER] = job[EPOCH] + 1, step[2]
    job[LEASE], job[LEASED] = now + step[5], begun
    save(job)
    jobs[#jobs + 1] = pack(found(job))
    return true
  end)
  return pack(tostring(now)) .. pack(is_cut) .. concat(jobs)
end

-- With several shards, the store first has to know which of them have the earliest.
function steps.peek_due(step)
  local limit, lines = tonumber(step[3]), {}
  each_due(names_in(step[4]), now + step[2], true, function(head)
    lines[#lines + 1] = head.due .. '\1' .. head.id
    return #lines < limit
  end)
  return concat(lines, '\0')
end

function steps.renew(step)
  local job = held(step[2], step[3])
  if not job then
    return ''
  end
  job[LEASE], job[LEASED] = now + step[4], begun
  save(job)
  return '1'
end

function steps.start(step)
  local job = held(step[2], step[3])
  if not job then
    return ''
  end
  if is_paused(job) then
    pause(job)
    return ''
  end
  if job[STATE] == 'waiting' and job[DUE] > now then
    return found(job)
  end
  if step[6] then
    local bound = {maximum = tonumber(step[6]), per_key = tonumber(step[7])}
    local by = blocked_by(job, bound)
    if by then
      block(job, by)
      return ''
    end
    if job[SLOT_MS] == '' then
      job[SLOT_MS] = now
    end
  end
  if job[LATENESS] == '' then
    job[LATENESS] = max(0, now - min(job[DUE], job[DEADLINE]))
  end
  if job[OUTCOME] == '' then
    job[OUTCOME] = 'expired'
  end
  job[ATTEMPT] = step[5] == '' and job[ATTEMPT] + 1 or tonumber(step[5])
  job[STATE], job[LEASE], job[LEASED] = 'running', now + step[4], begun
  change(job)
  return found(job)
end

function steps.finish(step)
  local job = read(step[2])
  if not job or job[EPOCH] ~= tonumber(step[3]) then
    return ''
  end
  if job[STATE] == step[4] then
    return '1'
  end
  if job[STATE] ~= 'running' or job[LEASE] == 0 then
    return ''
  end
  if step[5] ~= '' then
    job[ERROR] = step[5]
  end
  finish(job, step[4])
  return '1'
end

function steps.miss(step)
  local job = read(step[2])
  if not job or job[EPOCH] ~= tonumber(step[3]) then
    return ''
  end
  if job[OUTCOME] == 'missed' then
    return '1'
  end
  if not is_undecided(job) or job[LEASE] == 0 then
    return ''
  end
  job[OUTCOME] = 'missed'
  finish(job, 'cancelled')
  return '1'
end

function steps.give_back(step)
  local job = held(step[2], step[3])
  if not job then
    return ''
  end
  local due = step[4] == '' and job[DUE] or now + step[4]
  if job[STATE] ~= 'waiting' or job[DUE] ~= due then
    job[VERSION] = job[VERSION] + 1
  end
  if step[5] ~= '' then
    job[ERROR] = step[5]
  end
  -- What has a slot and was not started keeps it.
  local is_next = job[STATE] == 'waiting' and step[4] == '' and step[6] == ''
  local slot_ms = is_next and job[SLOT_MS] or ''
  free(job)
  job[STATE], job[DUE], job[SLOT_MS] = 'waiting', due, slot_ms
  if step[6] ~= '' then
    job[LEASE], job[LEASED], job[WORKER] = now + step[6], begun, ''
  end
  keep(job)
  return '1'
end

function steps.wait_again(step)
  local job = held(step[2], step[3])
  if not job or job[STATE] ~= 'running' then
    return ''
  end
  local slot = job[DEDUPE_KEY]
  local rival = slot ~= '' and call('HGET', DEDUPE, slot)
  rival = rival and read(rival)
  if rival and is_undecided(rival) and rival[DEDUPE_KEY] == slot then
    finish(job, 'done')
    return found(job)
  end
  leave_queries(job)
  free(job)
  local deadline = tonumber(step[5]) + (step[4] == 'delay' and now or 0)
  deadline = min(max(deadline, now), now + AHEAD)
  job[STATE], job[OUTCOME], job[FIRED_KEY], job[FIRED_JSON] = 'waiting', '', '', ''
  job[DEADLINE], job[DUE], job[CEILING] = deadline, deadline, ''
  job[KEYS_OF], job[NEEDED], job[ON_FIRE], job[FIRED_BEFORE] = step[6], tonumber(step[7]), step[8], ''
  if step[9] ~= '' then
    job[PAYLOAD] = step[9]
  end
  job[ATTEMPT], job[LATENESS] = 0, ''
  job[ROUND], job[ROUND_MS] = job[ROUND] + 1, now
  change(job)
  join_keys(job)
  call('ZADD', BY_HANDLER, 0, job[HANDLER] .. '\0' .. job.id)
  return found(job)
end

function steps.next_due_ms(step)
  local due = ''
  each_free(names_in(step[2]), 1e14, 1, function(job)
    due = job[DUE]
    return false
  end)
  return tostring(due)
end

function steps.get(step)
  local job = read(step[2])
  return job and found(job) or ''
end

local function matches(job, state, handler, key, listed, is_blocked)
  return (state == '' or job[STATE] == state)
    and (handler == '' or job[HANDLER] == handler)
    and (key == '' or find('\1' .. job[KEYS_OF] .. '\1', '\1' .. key .. '\1', 1, true))
    and (listed == '' or listed == listed_key(job))
    and (is_blocked == '' or job[BLOCKED_BY] ~= '')
end

function steps.query(step)
  local last, limit, state, handler, key = step[2], tonumber(step[3]), step[4], step[5], step[6]
  local listed, is_blocked = step[7] ~= '' and '\2' .. step[7] or '', step[8]
  local index, prefix = STATES[state], ''
  if key ~= '' then
    index, prefix = BY_KEY, key
  elseif listed ~= '' then
    index, prefix = BY_KEY, listed
  elseif is_blocked ~= '' then
    index = BLOCKED_IDS
  elseif handler ~= '' then
    index, prefix = BY_HANDLER, handler
  end
  local jobs, looked_at = {}, 0
  while true do
    local ids = index and below(index, prefix, last, limit) or below_in_any_state(last, limit)
    for _, id in ipairs(ids) do
      if #jobs == limit or looked_at == MAX_BATCH then
        return pack(last) .. concat(jobs)
      end
      local job = read(id)
      if job and matches(job, state, handler, key, listed, is_blocked) then
        jobs[#jobs + 1] = pack(found(job))
      elseif not job and prefix ~= '' then
        call('ZREM', index, prefix .. '\0' .. id)
      end
      looked_at, last = looked_at + 1, id
    end
    if #ids < limit then
      return pack('') .. concat(jobs)
    end
  end
end

function steps.counts()
  local counts = {call('LLEN', QUARANTINED) + (call('HGET', META, 'dropped') or 0)}
  for index, state in ipairs({'waiting', 'running', 'done', 'failed', 'cancelled'}) do
    counts[index + 1] = call('ZCARD', STATES[state])
  end
  counts[#counts + 1] = call('ZCARD', BLOCKED_IDS)
  return concat(counts, '\0')
end

-- Of a batch of the jobs in a state, how many each handler has, blocked by what: others are served in between. Nothing
-- is counted as jobs change, which would cost each of them.
function steps.count_handlers(step)
  local limit = min(MAX_BATCH, COUNTED_AT_ONCE)
  local ids, counts, lines = below(STATES[step[2]], '', step[3], limit), {}, {}
  local places = #ids > 0 and call('HMGET', AT, unpack(ids)) or {}
  for index, id in ipairs(ids) do
    local text = places[index] and call('HGET', TAG .. places[index], id)
    -- A corrupt record is found, and quarantined, by the next step that reads it.
    local is_long_enough, job = pcall(unpack_fields, UP_TO_HANDLER, text or '')
    if is_long_enough then
      local series = job[HANDLER] .. '\1' .. job[BLOCKED_BY]
      counts[series] = (counts[series] or 0) + 1
    end
  end
  for series, count in pairs(counts) do
    lines[#lines + 1] = series .. '\1' .. count
  end
  return (#ids == limit and ids[#ids] or '') .. '\0' .. concat(lines, '\0')
end

function steps.first_finished(step)
  local lines = {call('ZCARD', FINISHED)}
  local members = call('ZRANGE', FINISHED, 0, step[2] - 1, 'WITHSCORES')
  for index = 1, #members, 2 do
    lines[#lines + 1] = members[index + 1] .. '\1' .. members[index]
  end
  return concat(lines, '\0')
end

function steps.forget(step)
  local job = read(step[2])
  if not job or not FINAL[job[STATE]] then
    return ''
  end
  leave_queries(job)
  call('ZREM', FINISHED, job.id)
  call('ZREM', STATES[job[STATE]], job.id)
  call('HDEL', TAG .. job.place, job.id)
  call('HDEL', AT, job.id)
  forget_requests(job.id)
  return '1'
end

-- Only the record that was found corrupt, not one that has taken its place since.
function steps.quarantine(step)
  local id, text = step[2], concat(step, '\0', 4)
  local place = call('HGET', AT, id)
  if place and call('HGET', TAG .. place, id) == text then
    quarantine(id, place, text, step[3])
  end
  return ''
end

-- Always a write, so that a read-only server says so.
function steps.begin(step)
  call('HDEL', META, 'nothing')
  call('HSETNX', META, 'bucket_width_ms', settings[2])
  call('HSETNX', META, 'shards', step[2])
  return concat(call('HMGET', META, 'bucket_width_ms', 'shards'), '\0')
end

function steps.now_ms()
  return tostring(now)
end

-- Steps that read, or that ask for the rights where they begin to change something.
local READS = ' paused requested get query counts count_handlers first_finished now_ms'
  .. ' fire cancel_for_key '

local function run(step)
  if not find(READS, ' ' .. step[1] .. ' ', 1, true) then
    require_rights()
  end
  return steps[step[1]](step)
end

local results = {}
for index = 2, #ARGV do
  local text = ARGV[index]
  local step
  if sub(text, 1, 4) == 'add\0' then
    step = unpack_fields(ADD, text)
    is_adding = true
  else
    step = split(text)
    flush()
  end
  -- The failure of a step, such as a lack of memory, leaves the others alone.
  local is_done, result = pcall(run, step)
  if not is_done then
    result = 'error\0' .. (type(result) == 'table' and result.err or tostring(result))
  end
  results[#results + 1] = pack(result)
end
flush()
if soonest or #changes > 0 then
  -- A user without permission to publish has written all the same.
  local message = SENDER .. '\0' .. (soonest or '') .. '\0' .. concat(changes, '\1')
  redis.pcall('PUBLISH', TAG .. 'changes', message)
end
return pack(tostring(soonest_added or '')) .. pack(concat(changes, '\1')) .. concat(results)
