-- Every change of jobs in Redis: a batch of steps, each as atomic as if it were alone. What a step
-- does with a job is the table of purgatory.jobs.model.transitions; the tests of the contract
-- compare the two. A step says which fields of a job get which values; `save` makes the indexes
-- follow.
--
-- KEYS are those of one shard, in its slot, as a cluster requires:
--
--   jobs      hash  id -> record
--   due       zset  "handler\0due_ms\0id", by name: the jobs that can be claimed
--   held      zset  lease_until_ms of the leased jobs
--   queued    zset  "slot\0due_ms\0id", by name: jobs that are due and wait for a slot; those of a
--                   paused handler for "\2handler"
--   finished  zset  finished_ms
--   blocked, and one for each state: zset by name, for queries: blocked are the jobs of `queued`
--   slots     zset  "handler\0id" and "handler\1concurrency key\0id", by name, to count them: the
--                   jobs that hold slots
--   on_key    zset  "key\0id", by name: undecided jobs on their keys that have not fired
--   listed    zset  "key\0id", "\2concurrency key\0id" with the key as its owner gave it, and
--                   "\3handler\0id", by name, for queries
--   dedupe    hash  dedupe key -> id of the undecided job that has it
--   quarantined  list  "id\0reason\0record" of corrupt records, the last few
--   requests  hash  name of a request -> "id\0status\0fingerprint": the job that it added, replaced
--                   or kept; and ":id" -> the names of the last requests for it, 22 characters each
--   meta      hash  the number of shards, how many of `quarantined` were dropped
--   paused    hash  the names of paused handlers, \2 for all
--
-- A record's fields are separated by \0, which none of them can hold; the first is its format.
-- ARGV[1] is the settings, each further one a step, its fields separated likewise. The reply is a
-- row of netstrings ("length:text"): when the first of the added jobs is due, if that is soon, the
-- changes, and a result for each step. One string is read many times faster than a reply of as many
-- parts.
--
-- Within a step, what is removed is removed first: a server that is full lets jobs end, as it
-- refuses only the first write of a script, and only one that needs room.

local JOBS, DUE_JOBS, HELD, QUEUED, FINISHED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local SLOTS, ON_KEY, LISTED, DEDUPE, QUARANTINED = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local REQUESTS, META, BLOCKED, PAUSED_NAMES = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local STATES = {
  waiting = KEYS[15], running = KEYS[16], done = KEYS[17], failed = KEYS[18], cancelled = KEYS[19],
}
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
local concat, find, format, gmatch, gsub, match, sub =
  table.concat, string.find, string.format, string.gmatch, string.gsub, string.match, string.sub

local RECORD, ADD = string.rep('s', FIELDS), string.rep('s', 19)
local UP_TO_HANDLER = string.rep('s', HANDLER)

local function split(text)
  local parts = {}
  for part in gmatch(text .. '\0', '([^%z]*)%z') do
    parts[#parts + 1] = part
  end
  return parts
end

-- The same for as many fields as `layout` has, all in C.
local function unpack_fields(layout, text)
  return {struct.unpack(layout, text .. '\0')}
end

local settings = split(ARGV[1])
local CHANNEL, SENDER = settings[1], settings[2]
local HORIZON, MAX_ACTIVE = tonumber(settings[3]), tonumber(settings[4])
local PAST, AHEAD, MAX_BATCH = tonumber(settings[5]), tonumber(settings[6]), tonumber(settings[7])
local MAX_REQUESTS, MAX_QUARANTINED = tonumber(settings[8]), tonumber(settings[9])
local QUARANTINED_LENGTH, now = tonumber(settings[10]), tonumber(settings[11])
local REQUEST_LENGTH = 22
-- The server serves nobody else meanwhile: about a millisecond.
local COUNTED_AT_ONCE = 100
local DUE_AT_ONCE = 100
-- By how much clocks of one store may differ.
local CLOCK_SLACK = 1000
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

-- What leases that begin now say. As text: converting a number costs more than the rest of a field.
local begun = tostring(now)

local changes, soonest, soonest_added, active = {}, nil, nil, nil

-- What keeps a job that is due from being claimed.
local PAUSED, MAX_RUNNING, MAX_PER_KEY = 'paused', 'max_running', 'max_running_per_key'
-- All handlers among those that are paused; and before the name of one in `queued`.
local PAUSE = '\2'
local paused

local function is_paused(handler)
  if not paused then
    paused = {}
    for _, name in ipairs(call('HKEYS', PAUSED_NAMES)) do
      paused[name] = true
    end
  end
  return paused[PAUSE] or paused[handler]
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

-- Slots: "handler", or "handler\1concurrency key".
local function slot_of(job)
  local key = job[CONCURRENCY_KEY]
  return key == '' and job[HANDLER] or job[HANDLER] .. '\1' .. key
end

-- What a job that is due waits for: a slot, or the end of a pause.
local function queue_of(job)
  if job[BLOCKED_BY] == PAUSED then
    return PAUSE .. job[HANDLER]
  end
  return job[BLOCKED_BY] == MAX_RUNNING and job[HANDLER] or slot_of(job)
end

-- As text that sorts as the numbers do.
local function padded(ms)
  return format('%015d', ms)
end

-- Returns the index of what may become of a job next, its score there, and the member.
local function place_of(job)
  if FINAL[job[STATE]] then
    return FINISHED, job[ENDED], job.id
  elseif job[BLOCKED_BY] ~= '' then
    return QUEUED, 0, queue_of(job) .. '\0' .. padded(job[DUE]) .. '\0' .. job.id
  elseif job[LEASE] > now then
    return HELD, job[LEASE], job.id
  end
  return DUE_JOBS, 0, job[HANDLER] .. '\0' .. padded(job[DUE]) .. '\0' .. job.id
end

local function is_in_place(job, place, member)
  local index, _, own = place_of(job)
  return index == place and own == member
end

local OWNER_DIGITS = string.rep('[0-9a-f]', 16)

-- A concurrency key as its owner gave it.
local function listed_key(job)
  return (gsub(job[CONCURRENCY_KEY], '^~' .. OWNER_DIGITS .. '~(.)', '%1'))
end

-- The other entries of a job: index, member, and the next. An entry that it has not is false, so
-- that those of the same job correspond.
local function entries_of(job)
  local id, key = job.id, job[CONCURRENCY_KEY]
  local has_slot, has_key = job[SLOT_MS] ~= '', key ~= ''
  local entries = {
    STATES[job[STATE]], id,
    LISTED, '\3' .. job[HANDLER] .. '\0' .. id,
    job[BLOCKED_BY] ~= '' and BLOCKED, id,
    has_slot and SLOTS, has_slot and job[HANDLER] .. '\0' .. id,
    has_slot and has_key and SLOTS, has_slot and slot_of(job) .. '\0' .. id,
    has_key and LISTED, has_key and '\2' .. listed_key(job) .. '\0' .. id,
  }
  local count, waits_on = #entries, is_undecided(job) and ON_KEY
  local fired = '\1' .. job[FIRED_BEFORE] .. '\1'
  for key in each_key(job) do
    local member = key .. '\0' .. id
    entries[count + 1], entries[count + 2] = LISTED, member
    entries[count + 3] = not find(fired, '\1' .. key .. '\1', 1, true) and waits_on
    entries[count + 4] = member
    count = count + 4
  end
  return entries
end

local function is_listed(entries, at, others)
  return entries[at] == others[at] and entries[at + 1] == others[at + 1]
end

local function leave_place(job)
  local place, _, member = place_of(job)
  call('ZREM', place, member)
  if place == DUE_JOBS and job[LEASE] > 0 then
    -- `take_back` may not have come to it.
    call('ZREM', HELD, job.id)
  end
end

-- Removes entries, but for those that are among `others`.
local function remove(entries, others)
  for at = 1, #entries, 2 do
    if entries[at] and not is_listed(entries, at, others) then
      call('ZREM', entries[at], entries[at + 1])
    end
  end
end

-- Writes a job, and its entries, but for those that are among `others`.
local function write(job, entries, others)
  call('HSET', JOBS, job.id, encode(job))
  call('ZADD', place_of(job))
  for at = 1, #entries, 2 do
    if entries[at] and not is_listed(entries, at, others) then
      call('ZADD', entries[at], 0, entries[at + 1])
    end
  end
  if is_undecided(job) and job[DEDUPE_KEY] ~= '' then
    call('HSET', DEDUPE, job[DEDUPE_KEY], job.id)
  end
end

-- Gives some fields of a job other values. Each change of a stored job ends here.
local function save(job, values)
  local before, was_undecided = entries_of(job), is_undecided(job)
  leave_place(job)
  for field, value in pairs(values) do
    job[field] = value
  end
  local after = entries_of(job)
  remove(before, after)
  if was_undecided and not is_undecided(job) and job[DEDUPE_KEY] ~= '' then
    call('HDEL', DEDUPE, job[DEDUPE_KEY])
  end
  write(job, after, before)
end

local hand_over

-- Its entries in the indexes whose members begin with other names stay, as those are unknown: a
-- step that finds them there removes them.
local function quarantine(id, text, reason)
  -- The step may be one that reads.
  require_rights()
  call('HDEL', JOBS, id)
  for _, index in ipairs({HELD, FINISHED, BLOCKED}) do
    call('ZREM', index, id)
  end
  for _, index in pairs(STATES) do
    call('ZREM', index, id)
  end
  forget_requests(id)
  local over = call('LLEN', QUARANTINED) + 1 - MAX_QUARANTINED
  if over > 0 then
    call('LTRIM', QUARANTINED, over, -1)
    call('HINCRBY', META, 'dropped', over)
  end
  call('RPUSH', QUARANTINED, id .. '\0' .. reason .. '\0' .. sub(text, 1, QUARANTINED_LENGTH))
  local left
  for _, member in ipairs(call('ZRANGE', SLOTS, 0, -1)) do
    local slot, holder = match(member, '^(.*)%z(.*)$')
    if holder == id then
      call('ZREM', SLOTS, member)
      -- That of its key, if it has one, comes last.
      left = slot
    end
  end
  if left then
    hand_over(left)
  end
end

local function read(id)
  local text = call('HGET', JOBS, id)
  if not text then
    return nil
  end
  local job, reason = parse(text)
  if not job then
    quarantine(id, text, reason)
    return nil
  end
  job.id = id
  return job
end

-- Returns when a job is due that can be claimed, if that is soon; else ''.
local function note(job)
  if place_of(job) ~= DUE_JOBS or job[DUE] > now + HORIZON then
    return ''
  end
  soonest = min(soonest or job[DUE], job[DUE])
  return job[DUE]
end

local function announce(job)
  changes[#changes + 1] = job.id .. '\0' .. note(job)
end

-- Returns the first job that an index by name has under `name`; removes what it has no more.
local function first_under(index, name, is_there)
  while true do
    local low, high = '[' .. name .. '\0', '(' .. name .. '\1'
    local member = call('ZRANGEBYLEX', index, low, high, 'LIMIT', 0, 1)[1]
    if not member then
      return nil
    end
    require_rights()
    local job = read(match(member, '^.*%z(.*)$'))
    if job and is_there(job, index, member) then
      return job
    end
    call('ZREM', index, member)
  end
end

local function first_queued(name)
  return first_under(QUEUED, name, is_in_place)
end

local function first_on_key(key)
  return first_under(ON_KEY, key, is_undecided)
end

local function unblock(job)
  save(job, {[EPOCH] = job[EPOCH] + 1, [BLOCKED_BY] = '', [SLOT_MS] = now})
  announce(job)
end

-- Lets a job wait for a slot: it leaves the one that it holds.
local function block(job, by)
  local had_slot = job[SLOT_MS] ~= ''
  save(job, {[EPOCH] = job[EPOCH] + 1, [LEASE] = 0, [BLOCKED_BY] = by, [SLOT_MS] = ''})
  announce(job)
  if had_slot and by == MAX_PER_KEY then
    -- Too many for its key, by these bounds, but not for its handler.
    hand_over(job[HANDLER])
  end
end

-- Lets the first job that waits because of a key wait for any slot of the handler: one of its key
-- has left its slot, or that queue, and there may be no other that would.
local function move_up(slot)
  local first = first_queued(slot)
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
  local first = first_queued(handler)
  if first then
    unblock(first)
  end
end

local function count_slots(slot)
  return call('ZLEXCOUNT', SLOTS, '[' .. slot .. '\0', '(' .. slot .. '\1')
end

-- Gives the slots that `bound` allows to jobs that wait for them.
local function fill_slots(handler, bound)
  local room = bound.maximum and bound.maximum - count_slots(handler) or MAX_BATCH
  while room > 0 do
    local first = first_queued(handler)
    if not first then
      return
    end
    unblock(first)
    room = room - 1
  end
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

-- Saves a job and announces it; what it has waited for, or held, goes to others.
local function keep(job, values)
  local slot, had_slot, was_blocked_by = slot_of(job), job[SLOT_MS] ~= '', job[BLOCKED_BY]
  save(job, values)
  announce(job)
  if had_slot and job[SLOT_MS] == '' then
    hand_over(slot)
  elseif was_blocked_by == MAX_RUNNING and find(slot, '\1', 1, true) and job[BLOCKED_BY] == '' then
    move_up(slot)
  end
end

-- Lets a job wait for the end of the pause of its handler, with the slot that it has.
local function pause(job)
  keep(job, {[EPOCH] = job[EPOCH] + 1, [LEASE] = 0, [BLOCKED_BY] = PAUSED})
end

local function change(job, values)
  values[VERSION] = job[VERSION] + 1
  keep(job, values)
end

-- Changes a job that whoever holds it loses.
local function release(job, values)
  values[EPOCH], values[LEASE], values[SLOT_MS], values[BLOCKED_BY] = job[EPOCH] + 1, 0, '', ''
  change(job, values)
end

-- Ends a job for its holder, which keeps its epoch: the same step may come again.
local function finish(job, values)
  values[ENDED], values[LEASE], values[SLOT_MS] = now, 0, ''
  change(job, values)
end

local function cancel(job)
  local outcome = job[OUTCOME] == '' and 'cancelled' or job[OUTCOME]
  release(job, {[STATE] = 'cancelled', [OUTCOME] = outcome, [ENDED] = now})
end

-- Returns nil for a deadline too far in the past, or ahead.
local function resolve(mode, ms)
  local deadline = tonumber(ms) + (mode == 'delay' and now or 0)
  if now - deadline > PAST or deadline - now > AHEAD then
    return nil
  end
  return max(deadline, now)
end

local function under(ceiling, deadline)
  return ceiling == '' and deadline or min(ceiling, deadline)
end

-- Returns the undecided job that has a dedupe key; nil if there is none.
local function undecided_with(dedupe_key)
  local id = dedupe_key ~= '' and call('HGET', DEDUPE, dedupe_key)
  local job = id and read(id)
  return job and is_undecided(job) and job[DEDUPE_KEY] == dedupe_key and job or nil
end

-- Jobs whose lease ran out can be claimed again. Their records stay: until another worker claims a
-- job, the claim is good. In bounded batches, for a worker that held very many.
local function take_back()
  for _, id in ipairs(call('ZRANGEBYSCORE', HELD, '-inf', now, 'LIMIT', 0, 5 * MAX_BATCH)) do
    local job = read(id)
    call('ZREM', HELD, id)
    if job then
      call('ZADD', place_of(job))
    end
  end
end

-- Ends leases that began later than now, of those that end last and after `after_ms`.
local function end_leases(after_ms)
  local ids = call(
    'ZREVRANGEBYSCORE', HELD, '+inf', '(' .. after_ms, 'LIMIT', 0, MAX_BATCH)
  for _, id in ipairs(ids) do
    local job = read(id)
    if job and job[LEASE] > now and (tonumber(job[LEASED]) or 0) > now + CLOCK_SLACK then
      save(job, {[LEASE] = now})
    end
  end
end

-- The names that entries of an index begin with, of those between two bounds.
local function names_of(index, low, high)
  local names = {}
  while true do
    local member = call('ZRANGEBYLEX', index, low, high, 'LIMIT', 0, 1)[1]
    if not member then
      return names
    end
    names[#names + 1] = match(member, '^[^%z]*')
    low = '[' .. names[#names] .. '\1'
  end
end

-- Handlers in a field of a step, or all that have jobs that can be claimed.
local function handlers_in(field)
  if field == '' then
    return names_of(DUE_JOBS, '-', '+')
  end
  local names = {}
  for name in gmatch(field, '[^\1]+') do
    names[#names + 1] = name
  end
  return names
end

-- Entries of a handler's jobs that are due by `until_ms`, the first ones first.
local function due_of(handler, until_ms, count)
  local low, high = '[' .. handler .. '\0', '(' .. handler .. '\0' .. padded(until_ms + 1)
  return call('ZRANGEBYLEX', DUE_JOBS, low, high, 'LIMIT', 0, count)
end

-- Lets `head` name the next job of its handler that is due by `until_ms`; nil if there is none.
-- Those that it has named have left the index.
local function next_due(head, until_ms)
  head.at = head.at + 1
  if not head.found[head.at] then
    head.found, head.at = due_of(head.handler, until_ms, DUE_AT_ONCE), 1
  end
  head.member = head.found[head.at]
  head.order = head.member and sub(head.member, #head.handler + 2)
  return head.member and head
end

-- Iterates over the jobs of these handlers that can be claimed and are due by `until_ms`, the first
-- one first. Each has to leave the index before the next.
local function free_jobs(handlers, until_ms)
  take_back()
  local heads, head = {}, nil
  for _, handler in ipairs(handlers) do
    heads[handler] = next_due({handler = handler, found = {}, at = 0}, until_ms)
  end
  return function()
    while true do
      if head then
        heads[head.handler] = next_due(head, until_ms)
      end
      head = nil
      for _, other in pairs(heads) do
        if not head or other.order < head.order then
          head = other
        end
      end
      if not head then
        return nil
      end
      local job = read(sub(head.order, 17))
      if job and is_in_place(job, DUE_JOBS, head.member) then
        return job
      end
      call('ZREM', DUE_JOBS, head.member)
      if job then
        -- The clock went back: its lease has not ended yet.
        call('ZADD', place_of(job))
      end
    end
  end
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
local function add_to(rival, step, deadline)
  if step[6] == 'keep' then
    return 'kept\0' .. found(rival), rival.id
  elseif step[6] == 'error' then
    return 'duplicate\0' .. found(rival)
  end
  local ceiling = rival[CEILING]
  if ceiling == '' and step[5] ~= '' then
    ceiling = now + step[5]
  end
  deadline = under(ceiling, deadline)
  release(rival, {
    [DEADLINE] = deadline, [DUE] = deadline, [CEILING] = ceiling, [MAX_ATTEMPTS] = step[7],
    [ON_FIRE] = step[8], [MISFIRE] = step[9], [KEYS_OF] = step[11], [HANDLER] = step[12],
    [PAYLOAD] = step[13], [OWNER] = step[15], [NEEDED] = tonumber(step[16]) or 1,
    [FIRED_BEFORE] = '', [CONCURRENCY_KEY] = step[17], [TRACEPARENT] = step[18],
  })
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
  local rival = undecided_with(step[10])
  if rival then
    return add_to(rival, step, deadline)
  end
  active = active or call('ZCARD', STATES.waiting) + call('ZCARD', STATES.running)
  if active >= MAX_ACTIVE and step[19] == '' then
    return 'full'
  end
  local ceiling = step[5] == '' and '' or now + step[5]
  deadline = under(ceiling, deadline)
  local job = {
    '1', 'waiting', '', deadline, deadline, ceiling, now, '0', '0', 0, '0', '', '', '1', step[7],
    step[8], step[9], step[10], '', step[11], step[12], '', '', '', '', step[15], step[13],
    tonumber(step[16]) or 1, '', '0', '', step[17], '', step[18],
  }
  job.id = id
  write(job, entries_of(job), {})
  active = active + 1
  local due = note(job)
  if due ~= '' then
    soonest_added = min(soonest_added or due, due)
  end
  return 'added\0' .. now, id
end

-- Returns the id of the job of an earlier request, what was done then, and the fingerprint.
local function noted_for(request)
  local noted = call('HGET', REQUESTS, sub(request, 1, REQUEST_LENGTH))
  return unpack(noted and split(noted) or {})
end

function steps.add(step)
  local request = step[14]
  if request == '' then
    return (add(step))
  end
  local before, status, fingerprint = noted_for(request)
  local job = before and read(before)
  if job and fingerprint == sub(request, REQUEST_LENGTH + 2) then
    return 'repeated\0' .. status .. '\0' .. found(job)
  elseif job then
    return 'reused\0' .. found(job)
  end
  local result, id = add(step)
  if id then
    note_request(request, id, match(result, '^[^%z]*'))
  end
  return result
end

function steps.requested(step)
  local id, _, fingerprint = noted_for(step[2])
  return id and id .. '\0' .. fingerprint or ''
end

-- Fires an undecided job by a key that it waits on: it only counts while the job needs others, too.
local function fire(job, key, value)
  local before = job[FIRED_BEFORE] == '' and {} or {job[FIRED_BEFORE]}
  if job[NEEDED] > 1 then
    local _, separators = gsub(job[FIRED_BEFORE], '\1', '')
    if #before + separators + 1 < job[NEEDED] then
      before[#before + 1] = key
      return change(job, {[FIRED_BEFORE] = concat(before, '\1')})
    end
  end
  local values = {[OUTCOME] = 'fired', [FIRED_KEY] = key, [FIRED_JSON] = value}
  if job[ON_FIRE] == 'cancel' then
    values[STATE], values[ENDED] = 'cancelled', now
  else
    values[DUE] = now
  end
  release(job, values)
end

-- Decides up to `limit` undecided jobs on a key, one after another.
local function decide_on_key(key, limit, decide)
  local run, cancelled, counted = {}, {}, {}
  local job = first_on_key(key)
  while job and #run + #cancelled + #counted < tonumber(limit) do
    decide(job)
    local ids = is_undecided(job) and counted or FINAL[job[STATE]] and cancelled or run
    ids[#ids + 1] = job.id
    job = first_on_key(key)
  end
  return concat({
    job and '1' or '', concat(run, '\1'), concat(cancelled, '\1'), concat(counted, '\1'),
  }, '\0')
end

function steps.fire(step)
  return decide_on_key(step[2], step[4], function(job)
    fire(job, step[2], step[3])
  end)
end

function steps.cancel_for_key(step)
  return decide_on_key(step[2], step[3], cancel)
end

function steps.fire_job(step)
  local job = read(step[2])
  if not job then
    return ''
  end
  for index = 4, #step - 1, 2 do
    local key = step[index]
    if job[ROUND] == tonumber(step[3]) and call('ZSCORE', ON_KEY, key .. '\0' .. job.id) then
      fire(job, key, step[index + 1])
    end
  end
  return found(job)
end

-- Returns a step of a client on one job, at any version or at one. `decide` changes the job and
-- returns nil, or returns true: then the table of transitions says, of the job as it is, why not.
local function versioned(decide)
  return function(step)
    local job = read(step[2])
    if not job then
      return ''
    end
    local is_other = step[3] ~= '' and job[VERSION] ~= tonumber(step[3])
    local is_refused = is_other or decide(job, step)
    return (is_refused and now or '') .. '\0' .. found(job)
  end
end

steps.cancel = versioned(function(job)
  if job[STATE] == 'waiting' or job[BLOCKED_BY] ~= '' then
    cancel(job)
  else
    return job[STATE] ~= 'cancelled'
  end
end)

steps.reschedule = versioned(function(job, step)
  local deadline = is_undecided(job) and resolve(step[4], step[5])
  if not deadline then
    return true
  end
  deadline = under(job[CEILING], deadline)
  release(job, {[DEADLINE] = deadline, [DUE] = deadline})
end)

steps.run_now = versioned(function(job)
  if job[STATE] ~= 'waiting' then
    return true
  elseif job[DUE] > now then
    release(job, {[DUE] = now})
  end
end)

steps.retry = versioned(function(job)
  if job[STATE] ~= 'failed' then
    return true
  end
  release(job, {[STATE] = 'waiting', [DUE] = now, [ATTEMPT] = 0, [ENDED] = ''})
end)

function steps.pause(step)
  call('HSET', PAUSED_NAMES, step[2] == '' and PAUSE or step[2], '')
  paused = nil
  return ''
end

function steps.resume(step)
  call('HDEL', PAUSED_NAMES, step[2] == '' and PAUSE or step[2])
  paused = nil
  local limit, count = tonumber(step[3]), 0
  for _, queue in ipairs(names_of(QUEUED, '[' .. PAUSE, '(\3')) do
    local job = not is_paused(sub(queue, 2)) and first_queued(queue)
    while job and count < limit do
      keep(job, {[EPOCH] = job[EPOCH] + 1, [BLOCKED_BY] = ''})
      count = count + 1
      job = first_queued(queue)
    end
  end
  return tostring(count)
end

function steps.paused()
  local names = concat(call('HKEYS', PAUSED_NAMES), '\1')
  return names .. '\0' .. call('ZLEXCOUNT', QUEUED, '[' .. PAUSE, '(\3')
end

-- A job that is due, and was not missed: for that, its worker looks first.
local function needs_slot(job)
  return job[SLOT_MS] == '' and job[DUE] <= now
    and not (is_undecided(job) and job[MISFIRE] ~= 'run')
end

local function bound_of(maximum, per_key)
  return {maximum = tonumber(maximum), per_key = tonumber(per_key)}
end

function steps.claim(step)
  local jobs, bounds, is_cut = {}, {}, ''
  for index = 8, #step, 3 do
    local bound = bound_of(step[index + 1], step[index + 2])
    bounds[step[index]] = bound
    fill_slots(step[index], bound)
  end
  local clock = tonumber(step[7])
  if clock and now >= clock - CLOCK_SLACK then
    end_leases(now + step[5])
  end
  local next_job = free_jobs(handlers_in(step[6]), now + step[3])
  for _ = 1, tonumber(step[4]) do
    local job = next_job()
    if not job then
      break
    end
    local bound = needs_slot(job) and bounds[job[HANDLER]]
    local by = bound and blocked_by(job, bound)
    if is_paused(job[HANDLER]) then
      is_cut = '1'
      pause(job)
    elseif by then
      is_cut = '1'
      block(job, by)
    else
      save(job, {
        [EPOCH] = job[EPOCH] + 1, [WORKER] = step[2], [LEASE] = now + step[5], [LEASED] = begun,
        [SLOT_MS] = bound and now or job[SLOT_MS],
      })
      jobs[#jobs + 1] = pack(found(job))
    end
  end
  return pack(tostring(now)) .. pack(is_cut) .. concat(jobs)
end

-- With several shards, the store first has to know which of them have the earliest.
function steps.peek_due(step)
  take_back()
  local orders = {}
  for _, handler in ipairs(handlers_in(step[4])) do
    for _, member in ipairs(due_of(handler, now + step[2], step[3])) do
      orders[#orders + 1] = sub(member, #handler + 2)
    end
  end
  table.sort(orders)
  return concat(orders, '\1', 1, min(#orders, tonumber(step[3])))
end

function steps.next_due_ms(step)
  local job = free_jobs(handlers_in(step[2]), 1e14)()
  return job and tostring(job[DUE]) or ''
end

-- Returns a step of a worker on a job that no other has claimed since; else the result is ''.
local function of_claim(decide)
  return function(step)
    local job = read(step[2])
    return job and job[EPOCH] == tonumber(step[3]) and decide(job, step) or ''
  end
end

-- Returns a step of the worker that holds a job; the result is '' if its claim is lost.
local function of_holder(decide)
  return of_claim(function(job, step)
    return job[LEASE] > 0 and decide(job, step)
  end)
end

steps.renew = of_holder(function(job, step)
  save(job, {[LEASE] = now + step[4], [LEASED] = begun})
  return '1'
end)

steps.start = of_holder(function(job, step)
  if is_paused(job[HANDLER]) then
    pause(job)
    return ''
  end
  if job[STATE] == 'waiting' and job[DUE] > now then
    return found(job)
  end
  local by = step[6] and blocked_by(job, bound_of(step[6], step[7]))
  if by then
    block(job, by)
    return ''
  end
  local lateness = job[LATENESS]
  if lateness == '' then
    lateness = max(0, now - min(job[DUE], job[DEADLINE]))
  end
  change(job, {
    [STATE] = 'running',
    [OUTCOME] = job[OUTCOME] == '' and 'expired' or job[OUTCOME],
    [ATTEMPT] = step[5] == '' and job[ATTEMPT] + 1 or tonumber(step[5]),
    [LATENESS] = lateness,
    [LEASE] = now + step[4],
    [LEASED] = begun,
    [SLOT_MS] = step[6] and job[SLOT_MS] == '' and now or job[SLOT_MS],
  })
  return found(job)
end)

steps.finish = of_claim(function(job, step)
  if job[STATE] == 'running' and job[LEASE] > 0 then
    finish(job, {[STATE] = step[4], [ERROR] = step[5] == '' and job[ERROR] or step[5]})
  end
  return job[STATE] == step[4] and '1'
end)

steps.miss = of_claim(function(job)
  if is_undecided(job) and job[LEASE] > 0 then
    finish(job, {[STATE] = 'cancelled', [OUTCOME] = 'missed'})
  end
  return job[OUTCOME] == 'missed' and '1'
end)

steps.give_back = of_holder(function(job, step)
  local due = step[4] == '' and job[DUE] or now + step[4]
  local is_changed = job[STATE] ~= 'waiting' or job[DUE] ~= due
  -- What has a slot and was not started keeps it.
  local is_next = job[STATE] == 'waiting' and step[4] == '' and step[6] == ''
  local values = {
    [STATE] = 'waiting', [DUE] = due, [EPOCH] = job[EPOCH] + 1, [LEASE] = 0,
    [ERROR] = step[5] == '' and job[ERROR] or step[5],
    [SLOT_MS] = is_next and job[SLOT_MS] or '',
    [VERSION] = job[VERSION] + (is_changed and 1 or 0),
  }
  if step[6] ~= '' then
    values[LEASE], values[LEASED], values[WORKER] = now + step[6], begun, ''
  end
  keep(job, values)
  return '1'
end)

steps.wait_again = of_holder(function(job, step)
  if job[STATE] ~= 'running' then
    return ''
  end
  if undecided_with(job[DEDUPE_KEY]) then
    finish(job, {[STATE] = 'done'})
    return found(job)
  end
  local deadline = tonumber(step[5]) + (step[4] == 'delay' and now or 0)
  deadline = min(max(deadline, now), now + AHEAD)
  release(job, {
    [STATE] = 'waiting', [OUTCOME] = '', [FIRED_KEY] = '', [FIRED_JSON] = '', [FIRED_BEFORE] = '',
    [DEADLINE] = deadline, [DUE] = deadline, [CEILING] = '', [KEYS_OF] = step[6],
    [NEEDED] = tonumber(step[7]), [ON_FIRE] = step[8],
    [PAYLOAD] = step[9] == '' and job[PAYLOAD] or step[9],
    [ATTEMPT] = 0, [LATENESS] = '', [ROUND] = job[ROUND] + 1, [ROUND_MS] = now,
  })
  return found(job)
end)

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
  local listed, is_blocked = step[7], step[8]
  local index, prefix = STATES[state], ''
  if key ~= '' then
    index, prefix = LISTED, key
  elseif listed ~= '' then
    index, prefix = LISTED, '\2' .. listed
  elseif is_blocked ~= '' then
    index = BLOCKED
  elseif handler ~= '' then
    index, prefix = LISTED, '\3' .. handler
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
  counts[#counts + 1] = call('ZCARD', BLOCKED)
  return concat(counts, '\0')
end

-- Of a batch of the jobs in a state, how many each handler has, blocked by what: others are served
-- in between. Nothing is counted as jobs change, which would cost each of them.
function steps.count_handlers(step)
  local limit = min(MAX_BATCH, COUNTED_AT_ONCE)
  local ids, counts, lines = below(STATES[step[2]], '', step[3], limit), {}, {}
  for _, text in ipairs(#ids > 0 and call('HMGET', JOBS, unpack(ids)) or {}) do
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
    lines[#lines + 1] = padded(members[index + 1]) .. '\0' .. members[index]
  end
  return concat(lines, '\1')
end

function steps.forget(step)
  local job = read(step[2])
  if not job or not FINAL[job[STATE]] then
    return ''
  end
  leave_place(job)
  remove(entries_of(job), {})
  call('HDEL', JOBS, job.id)
  forget_requests(job.id)
  return '1'
end

-- Only the record that was found corrupt, not one that has taken its place since.
function steps.quarantine(step)
  local id, text = step[2], concat(step, '\0', 4)
  if call('HGET', JOBS, id) == text then
    quarantine(id, text, step[3])
  end
  return ''
end

-- Always a write, so that a read-only server says so.
function steps.begin(step)
  call('HDEL', META, 'nothing')
  call('HSETNX', META, 'shards', step[2])
  return call('HGET', META, 'shards')
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
  local step = sub(text, 1, 4) == 'add\0' and unpack_fields(ADD, text) or split(text)
  -- The failure of a step, such as a lack of memory, leaves the others alone.
  local is_done, result = pcall(run, step)
  if not is_done then
    result = 'error\0' .. (type(result) == 'table' and result.err or tostring(result))
  end
  results[#results + 1] = pack(result)
end
if soonest or #changes > 0 then
  -- A user without permission to publish has written all the same.
  local message = SENDER .. '\0' .. (soonest or '') .. '\0' .. concat(changes, '\1')
  redis.pcall('PUBLISH', CHANNEL, message)
end
return pack(tostring(soonest_added or '')) .. pack(concat(changes, '\1')) .. concat(results)
