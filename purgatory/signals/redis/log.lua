-- The log of one shard of signals: KEYS are meta, log, keys and idle, all of one hash tag.
--
-- meta    hash: epochs, server and shards (see `begin`), and counts: "head trimmed bytes count seq
--         forgotten", the last two the highest number and offset of keys that `keys` has no longer;
--         " owners count bytes hole holes" follow once there were owners: how many have entries,
--         those of all, the last offset in the midst at which the last entry of a key was removed,
--         and how often that was done
-- log     stream: ids are the offsets; one field, the entry as `pack` makes it
-- keys    hash: key -> "seq last lost reported" (offsets of its last entry, and through which it lost
--         any; and "epoch-offset" of the last lost entry that was reported, or 0)
-- idle    sorted set: keys without entries in the log, by the offset of their last one
-- <tag>of:<key>        list: offsets of the key's entries that are in the log
-- <tag>by:<owner>      sorted set: offsets of the owner's entries; empty name: those of nobody, but
--                      for older ones than any that has an owner
-- <tag>entries_by, <tag>bytes_by  sorted sets: owners, by the number and by the size of their entries
-- <tag>repeat:<name>   string: an idempotent request, kept for some minutes: "fingerprint result",
--                      or "fingerprint @token until_ms logs" if this is the home of its name, and
--                      it was claimed before it was appended to those logs, which takes until then
--                      at most
-- <tag>repeats:<owner> list, the oldest first: "size at_ms name" of the owner's kept requests; the
--                      name is empty for what a kept one has grown by
-- <tag>repeats_by      sorted set: owners, by the sum of these sizes
-- <tag>repeats_since   sorted set: owners, by the time of their oldest, or by an earlier one
-- <tag>repeats_bytes   string: the sum of all
--
-- Names of requests are hashes of them and of their owners. Owners are hashes, too.
-- Numbers are below 10^14: ".." writes them as integers. What a request runs for the first time in a
-- while takes the server longer than most commands do: a plain fire returns early, and functions that
-- few requests need are made for them. What is done to many entries is done by few commands: the
-- server serves nobody else during a call.
local meta, log, keys, idle = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tag = string.sub(meta, 1, -5)
local call = redis.call

local command, candidate, channel = ARGV[1], ARGV[2], ARGV[3]
local max_signals, max_bytes, max_per_key, max_age_ms, shards = string.match(ARGV[4],
  '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
max_signals, max_bytes = tonumber(max_signals), tonumber(max_bytes)
-- Several at once: most fires on a key with a full history take three commands less.
max_per_key = tonumber(max_per_key)
local max_listed = max_per_key + math.floor(max_per_key / 8)
-- The longest a list of epochs gets: cursors from before are expired.
local MAX_EPOCHS = 32
-- What one call trims at most, besides one entry for each that it appends.
local TRIMMED_AT_ONCE = 1000
-- The arguments of one command, about: Lua has room for some thousand on its stack.
local PART = 1000
-- Bytes of entries in one reply, about, and in one message: subscribers have small buffers.
local MAX_REPLY = 2000000
local MAX_MESSAGE = 1000000
local READ_AT_ONCE = 100
-- Of names of fires: what one takes besides its value, about, and how many one call forgets at most.
-- shard_log.py sets above: REPEAT_MS, and the part of max_bytes that they take, REPEAT_PART.
local REPEAT_OVERHEAD = 256
local REPEATS_AT_ONCE = 50
-- The digits of an owner and of a trace context, without separators: a share has one or both.
local OWNER, TRACE = 12, 50

local time = call('TIME')
-- An epoch is a history that only grows. Another begins, at the head, whenever the server may have
-- lost writes: it was restarted, or a replica took over. `epochs` lists "name:offset" of each.
local replication = call('INFO', 'replication')
local found = call('HMGET', meta, 'epochs', 'server', 'shards', 'counts')
local epochs, server, found_shards = found[1], found[2], found[3]

-- A plain fire: one signal, without conditions, in a log of this server that is not full. The same is
-- done below, for any request.
if command == 'append' and #ARGV == 11 and ARGV[9] == 'f' and ARGV[5] == '' and ARGV[7] == ''
  and found[4] then
  local before, unchanged, bytes, count, forgotten, first_seq, owned = string.match(found[4],
    '^(%d+) (%d+) (%d+) ([1-9]%d*)( (%d+) %d+)(.*)$')
  if before and string.find(replication, 'role:master', 1, true)
    and string.find(replication, 'master_replid:' .. server, 1, true) then
    local share, key = ARGV[6], ARGV[10]
    local seq, last, losses = string.match(call('HGET', keys, key) or first_seq .. ' 0 0 0',
      '^(%d+) (%d+)( %d+ %S+)$')
    local now_ms = string.format('%s%03d', time[1], math.floor(time[2] / 1000))
    local offset, offsets = string.format('%d', before + 1), tag .. 'of:' .. key
    seq = string.format('%d', seq + 1)
    local entry = 'f' .. seq .. ' ' .. now_ms .. ' ' .. last .. ' ' .. #key
      .. (share == '' and ' ' or '@' .. share .. ' ') .. key .. ARGV[11]
    count, bytes = count + 1, bytes + #entry
    if count <= max_signals and bytes <= max_bytes and #entry < MAX_MESSAGE then
      -- As `require_rights`, in fewer steps: all but the first that writes.
      local is_allowed = redis.acl_check_cmd
      if is_allowed and not (is_allowed('XADD', log) and is_allowed('HSET', log)
        and is_allowed('ZREM', log) and is_allowed('RPOP', log) and (share == '' and owned == ''
        or is_allowed('ZINCRBY', log) and is_allowed('ZADD', log))) then
        require_rights({'XADD', 'HSET', 'ZREM', 'RPOP', 'ZINCRBY', 'ZADD'})
      end
      local listed = call('RPUSH', offsets, offset)
      -- Of a log that somebody has deleted, nothing is made anew here.
      if listed <= max_listed and call('XADD', log, 'NOMKSTREAM', offset .. '-0', 'e', entry) then
        if listed == 1 then call('ZREM', idle, key) end
        call('HSET', keys, key, seq .. ' ' .. offset .. losses)
        local owner = #share == TRACE and '' or string.sub(share, 1, OWNER)
        if owner ~= '' or owned ~= '' then
          local owners, entries, size, holes = string.match(owned, '^ (%d+) (%d+) (%d+)(.*)$')
          if not owners then owners, entries, size, holes = 0, 0, 0, ' 0 0' end
          if owner ~= '' then
            if call('ZINCRBY', tag .. 'entries_by', 1, owner) == '1' then owners = owners + 1 end
            call('ZINCRBY', tag .. 'bytes_by', #entry, owner)
            entries, size = entries + 1, size + #entry
          end
          if owners ~= '0' then call('ZADD', tag .. 'by:' .. owner, offset, offset) end
          owned = string.format(' %d %d %d%s', owners, entries, size, holes)
        end
        call('HSET', meta, 'counts',
          string.format('%s %s %d %d%s%s', offset, unchanged, bytes, count, forgotten, owned))
        local epoch = string.match(epochs, '^.*,(%w+):') or string.match(epochs, '^%w+')
        redis.pcall('PUBLISH', channel, epoch .. ' ' .. offset .. ' ' .. #entry .. ':' .. entry)
        local result = 'ok ' .. before .. ' ' .. now_ms .. ' ' .. seq .. ' '
        return string.format('%d:%s%d:%s', #epoch, epoch, #result, result)
      end
      call('RPOP', offsets)
    end
  end
end

local function net(text) return #text .. ':' .. text end

local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
max_age_ms = tonumber(max_age_ms)
local id = string.match(replication, 'master_replid:(%w+)') or ''
if string.find(replication, 'role:slave', 1, true) then
  -- It may be behind, and takes no writes.
  return redis.error_reply('READONLY the server of the signals is a replica now')
end

local head, trimmed, bytes, count, forgotten_seq, forgotten
local owners, owned, owned_bytes, hole, holes = 0, 0, 0, 0, 0
if epochs and found[4] then
  local more
  head, trimmed, bytes, count, forgotten_seq, forgotten, more = string.match(found[4],
    '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
  if more and more ~= '' then
    owners, owned, owned_bytes, hole, holes = string.match(more, '^ (%d+) (%d+) (%d+) (%d+) (%d+)$')
    owners, owned, owned_bytes = tonumber(owners), tonumber(owned), tonumber(owned_bytes)
    hole, holes = tonumber(hole), tonumber(holes)
  end
  head, trimmed, bytes = tonumber(head), tonumber(trimmed), tonumber(bytes)
  count, forgotten_seq, forgotten = tonumber(count), tonumber(forgotten_seq), tonumber(forgotten)
end
local is_new = not epochs or not count or count ~= call('XLEN', log)
-- Without a right, nothing is changed, and reading goes on. What a request needs is asked for first;
-- without the rights of what makes room, that is left to others, unless there is none.
local needs_all = is_new or command == 'read' or count > max_signals or bytes > max_bytes
local lack = lack_of_rights(not needs_all
  and {'XADD', 'RPUSH', 'HSET', 'HGET', 'ZREM', 'ZINCRBY', 'ZADD', 'GET', 'SET', 'INCRBY'} or nil)
local is_read = command == 'read' or command == 'keys' or command == 'last' or command == 'known'
if lack and (is_new or id ~= server or not is_read) then return redis.error_reply(lack) end
if is_new then
  -- New, or somebody deleted a part of it.
  for _, key in ipairs(call('HKEYS', keys)) do call('DEL', tag .. 'of:' .. key) end
  for _, owner in ipairs(call('ZRANGE', tag .. 'entries_by', 0, -1)) do
    call('DEL', tag .. 'by:' .. owner)
  end
  call('DEL', log, keys, idle, meta, tag .. 'by:', tag .. 'entries_by', tag .. 'bytes_by')
  owners, owned, owned_bytes, hole, holes = 0, 0, 0, 0, 0
  epochs, server, head, trimmed, bytes, count, forgotten_seq = candidate .. ':0', id, 0, 0, 0, 0, 0
  found_shards, forgotten = shards, 0
  call('HSET', meta, 'epochs', epochs, 'server', id, 'shards', shards, 'counts', '0 0 0 0 0 0')
elseif id ~= server then
  epochs = epochs .. ',' .. candidate .. ':' .. head
  local _, commas = string.gsub(epochs, ',', '')
  if commas >= MAX_EPOCHS then epochs = string.gsub(epochs, '^[^,]*,', '', 1) end
  call('HSET', meta, 'epochs', epochs, 'server', id)
end
local epoch = string.match(epochs, '([^,:]+):%d+$')

local function store_counts()
  local counts = head .. ' ' .. trimmed .. ' ' .. bytes .. ' ' .. count .. ' ' .. forgotten_seq .. ' '
    .. forgotten
  if owners > 0 or hole > 0 then
    counts = counts .. ' ' .. owners .. ' ' .. owned .. ' ' .. owned_bytes .. ' ' .. hole .. ' '
      .. holes
  end
  call('HSET', meta, 'counts', counts)
end

-- Run a command on a key with many arguments.
local function many(name, key, values)
  for from = 1, #values, PART do
    call(name, key, unpack(values, from, math.min(from + PART - 1, #values)))
  end
end

-- {key: {seq, last, lost, reported}}: the records that this call has read, and {key: true} of those to be
-- stored. Their numbers are texts, as making those of numbers takes the server long.
local records, changed = {}, {}

local function parsed(text)
  if not text then return {forgotten_seq .. '', '0', '0', '0'} end
  local seq, last, lost, reported = string.match(text, '^(%d+) (%d+) (%d+) (%S+)$')
  return {seq, last, lost, reported}
end

local function record(key)
  local found = records[key]
  if not found then
    found = parsed(call('HGET', keys, key))
    records[key] = found
  end
  return found
end

-- Read the records of keys together, those that are not known yet.
local function load(names)
  local unknown = {}
  for _, key in ipairs(names) do
    if not records[key] then unknown[#unknown + 1], records[key] = key, true end
  end
  for from = 1, #unknown, PART do
    local to = math.min(from + PART - 1, #unknown)
    for index, text in ipairs(call('HMGET', keys, unpack(unknown, from, to))) do
      records[unknown[from + index - 1]] = parsed(text)
    end
  end
end

local function store_records()
  local texts = {}
  for key in pairs(changed) do
    local found = records[key]
    texts[#texts + 1] = key
    texts[#texts + 1] = found[1] .. ' ' .. found[2] .. ' ' .. found[3] .. ' ' .. found[4]
  end
  many('HSET', keys, texts)
end

local function is_of_another(known, fingerprint)
  return known and string.sub(known, 1, #fingerprint + 1) ~= fingerprint .. ' '
end

-- Requests with names.
local made_repeats
local function repeats()
  if made_repeats then return made_repeats end

  -- Forget some of an owner's oldest: those from before a time, or just one. Return how many, and one
  -- for looking.
  local function forget(owner, limit, before_ms)
    local names, freed, done = tag .. 'repeats:' .. owner, 0, 0
    local first = call('LINDEX', names, 0)
    while first and done < limit do
      local size, at_ms, name = string.match(first, '^(%d+) (%d+) (.*)$')
      at_ms = tonumber(at_ms)
      if before_ms and at_ms >= before_ms then
        call('ZADD', tag .. 'repeats_since', at_ms, owner)
        break
      end
      -- The string of one that has expired may be that of a newer request.
      if name ~= '' and at_ms > now_ms - REPEAT_MS then call('DEL', tag .. 'repeat:' .. name) end
      call('LPOP', names)
      freed, done = freed + size, done + 1
      first = call('LINDEX', names, 0)
    end
    local left = tonumber(call('ZINCRBY', tag .. 'repeats_by', -freed, owner))
    if not first then
      freed = freed + left
      call('ZREM', tag .. 'repeats_by', owner)
      call('ZREM', tag .. 'repeats_since', owner)
    end
    call('DECRBY', tag .. 'repeats_bytes', freed)
    return done + 1
  end

  local function forget_expired(limit)
    while limit > 0 do
      local first = call('ZRANGE', tag .. 'repeats_since', 0, 0, 'WITHSCORES')
      if not first[1] or tonumber(first[2]) > now_ms - REPEAT_MS then return end
      limit = limit - forget(first[1], limit, now_ms - REPEAT_MS)
    end
  end

  -- Make room for what was counted last: the owner of most forgets its oldest. Of equals, nobody makes
  -- room for another.
  local function make_room(owner, size, total)
    local limit, maximum = REPEATS_AT_ONCE, max_bytes * REPEAT_PART
    if total <= maximum or lack_of_rights() then return end
    forget_expired(limit)
    while limit > 0 and tonumber(call('GET', tag .. 'repeats_bytes')) > maximum do
      local most = call('ZREVRANGE', tag .. 'repeats_by', 0, 0, 'WITHSCORES')
      local own = tonumber(call('ZSCORE', tag .. 'repeats_by', owner) or size) - size
      local second = most[1] == owner and call('ZREVRANGE', tag .. 'repeats_by', 1, 1, 'WITHSCORES')
      if second then most = second[1] and second or most end
      local is_own = most[1] == owner or own >= tonumber(most[2])
      limit = limit - forget(is_own and owner or most[1], 1)
    end
  end

  local function count_one(owner, name, size)
    if call('RPUSH', tag .. 'repeats:' .. owner, size .. ' ' .. now_ms .. ' ' .. name) == 1 then
      call('ZADD', tag .. 'repeats_since', now_ms, owner)
    end
    call('ZINCRBY', tag .. 'repeats_by', size, owner)
    make_room(owner, size, call('INCRBY', tag .. 'repeats_bytes', size))
  end

  -- Keep what a name stands for in the string `entry`; `known` is what it stood for.
  local function keep(entry, owner, name, value, known)
    if known then
      call('SET', entry, value, 'KEEPTTL')
      return
    end
    call('SET', entry, value, 'PX', REPEAT_MS)
    count_one(owner, name, #value + REPEAT_OVERHEAD)
  end

  -- Keep a response in place of the result, unless that was forgotten.
  local function keep_response(name, owner, fingerprint, response)
    local entry, value = tag .. 'repeat:' .. name, fingerprint .. ' = ' .. response
    local known = call('GET', entry)
    if not known or is_of_another(known, fingerprint) then return end
    call('SET', entry, value, 'KEEPTTL')
    if #value > #known then count_one(owner, '', #value - #known) end
  end

  made_repeats = {forget_expired = forget_expired, keep = keep, keep_response = keep_response}
  return made_repeats
end

-- {owner: offsets of entries that this call has appended, each twice}, with their size in `bytes`.
local added = {}

local function add_shares()
  for owner, offsets in pairs(added) do
    local entries = #offsets / 2
    if owner ~= '' and entries > 0 then
      call('ZINCRBY', tag .. 'bytes_by', offsets.bytes, owner)
      if tonumber(call('ZINCRBY', tag .. 'entries_by', entries, owner)) == entries then
        owners = owners + 1
      end
      owned, owned_bytes = owned + entries, owned_bytes + offsets.bytes
    end
  end
  -- Those of nobody: there is nothing to do while there are no owners.
  if owners > 0 then
    for owner, offsets in pairs(added) do many('ZADD', tag .. 'by:' .. owner, offsets) end
  end
  added = {}
end

-- Owners and removals. Offsets are texts.
local made
local function rare()
  if made then return made end

  -- To how many and how much a log is trimmed that is full.
  local most_signals, most_bytes = max_signals, max_bytes

  -- Return key, owner and time of an entry.
  local function parts(entry)
    local made_ms, length, share, at = string.match(entry, '^%a%d+ (%d+) %d+ (%d+)@?([^ ]*) ()')
    local owner = #share == TRACE and '' or string.sub(share, 1, OWNER)
    return string.sub(entry, at, at + length - 1), owner, made_ms
  end

  -- The ids of entries that are to be removed, and {owner: their offsets}, with their size.
  local ids, shares = {}, {}

  local function remove(offset, owner, entry)
    local share = shares[owner]
    if not share then
      share = {bytes = 0}
      shares[owner] = share
    end
    ids[#ids + 1], share[#share + 1], share.bytes = offset .. '-0', offset, share.bytes + #entry
    count, bytes = count - 1, bytes - #entry
  end

  local function flush()
    add_shares()
    many('XDEL', log, ids)
    if owners > 0 then
      for owner, offsets in pairs(shares) do
        many('ZREM', tag .. 'by:' .. owner, offsets)
        if owner ~= '' then
          owned, owned_bytes = owned - #offsets, owned_bytes - offsets.bytes
          call('ZINCRBY', tag .. 'bytes_by', -offsets.bytes, owner)
          if tonumber(call('ZINCRBY', tag .. 'entries_by', -#offsets, owner)) <= 0 then
            call('ZREM', tag .. 'entries_by', owner)
            call('ZREM', tag .. 'bytes_by', owner)
            owners = owners - 1
          end
        end
      end
      if owners == 0 then call('DEL', tag .. 'by:') end
    end
    ids, shares = {}, {}
  end

  -- Return the entry of `key` at an offset and its owner, unless it is of another key: its list may be
  -- from before somebody deleted the log.
  local function entry_of(key, offset)
    local found = call('XRANGE', log, offset, offset)[1]
    local entry = found and found[2][2]
    local of, owner = parts(entry or 'f0 0 0 0 ')
    if entry and of == key then return entry, owner end
  end

  -- Remove the entries of `key` at offsets.
  local function remove_of(key, offsets)
    for _, offset in ipairs(offsets) do
      local entry, owner = entry_of(key, offset)
      if entry then remove(offset, owner, entry) end
    end
  end

  -- Return an owner whose part of the log is of average size or above: `newest`, the owner of the last
  -- entry, if it is; else the largest. The last entry is the one that others have to make room for.
  -- Then its part, and what is left to it of that before it is chosen again.
  local function crowding(newest)
    local set, total, of_owners = tag .. 'entries_by', count, owned
    local by_bytes = bytes > most_bytes
    if by_bytes then set, total, of_owners = tag .. 'bytes_by', bytes, owned_bytes end
    local shared = owners + (count > owned and 1 or 0)
    local function part(owner)
      if owner == '' then return total - of_owners end
      return tonumber(call('ZSCORE', set, owner) or 0)
    end
    local entries, most = count - owned, part(newest)
    if newest ~= '' then
      entries = by_bytes and tonumber(call('ZSCORE', tag .. 'entries_by', newest) or 0) or most
    end
    local largest = newest
    if entries <= 1 or most * shared < total then
      local own = most
      most = -1
      if newest ~= '' and count > owned then largest, most = '', total - of_owners end
      local top = call('ZREVRANGE', set, 0, 1, 'WITHSCORES')
      for index = 1, #top, 2 do
        if top[index] ~= newest and tonumber(top[index + 1]) > most then
          largest, most = top[index], tonumber(top[index + 1])
        end
      end
      if most < 0 then most = own end
    end
    return largest, most, math.min(total / shared, most * 15 / 16)
  end

  -- The keys whose last entry was trimmed, each behind the offset of that, have none.
  local function note_idle(emptied)
    many('ZADD', idle, emptied)
    local surplus = #emptied > 0 and call('ZCARD', idle) - max_signals or 0
    if surplus <= 0 then return end
    local popped, gone = call('ZPOPMIN', idle, surplus), {}
    for index = 1, #popped, 2 do gone[#gone + 1] = popped[index] end
    load(gone)
    for _, key in ipairs(gone) do
      forgotten_seq = math.max(forgotten_seq, tonumber(records[key][1]))
      forgotten = math.max(forgotten, tonumber(records[key][2]))
      records[key], changed[key] = nil, nil
    end
    many('HDEL', keys, gone)
  end

  -- Trim up to `wanted` entries of one owner, or the oldest of all; return how many. Before an entry the
  -- older ones of its key are trimmed. `is_full` or not: then those that are too old.
  local function trim_some(wanted, is_full, newest)
    local offsets, entries, of, owner_of, first = {}, {}, {}, {}, 1
    local chosen, part, left = offsets, math.huge, 0
    local function note(offset, entry)
      entries[offset], of[offset], owner_of[offset] = entry, parts(entry)
    end
    for index, item in ipairs(call('XRANGE', log, '-', '+', 'COUNT', wanted)) do
      offsets[index] = string.match(item[1], '^%d+')
      note(offsets[index], item[2][2])
    end
    if is_full and owners > 0 then
      local owner, all = nil, {}
      if not newest then
        local _
        _, newest = parts(call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1][2][2])
      end
      owner, part, left = crowding(newest)
      for _, offset in ipairs(offsets) do
        if owner_of[offset] == owner then all[#all + 1] = offset end
      end
      -- Not all of nobody's are in a set.
      if all[1] ~= offsets[1] then all = call('ZRANGE', tag .. 'by:' .. owner, 0, wanted - 1) end
      if #all > 0 then chosen = all end
    end
    local by_bytes, names, done, gone, emptied = bytes > most_bytes, {}, 0, {}, {}
    for index, offset in ipairs(chosen) do
      if not entries[offset] then
        local found = call('XRANGE', log, offset, offset)[1]
        if found then note(offset, found[2][2]) end
      end
      names[index] = of[offset]
    end
    if #names > 1 then load(names) end
    local function trim_one(key, offset, owner, entry)
      local found, is_oldest = record(key), offset == offsets[first]
      remove(offset, owner, entry)
      part = part - (by_bytes and #entry or 1)
      gone[offset], changed[key], found[3] = true, true, offset
      if is_oldest then trimmed = math.max(trimmed, tonumber(offset)) end
      while gone[offsets[first]] do first = first + 1 end
      if found[2] == offset then
        -- A later entry of the key would tell who has not read this one.
        if not is_oldest then hole, holes = math.max(hole, tonumber(offset)), holes + 1 end
        emptied[#emptied + 1], emptied[#emptied + 2] = offset, key
      end
    end
    local function is_enough()
      return done >= wanted or is_full
        and (part <= left or count <= most_signals and bytes <= most_bytes)
    end
    for _, offset in ipairs(chosen) do
      local key = of[offset]
      if not is_full then
        local _, _, made_ms = parts(entries[offset])
        if now_ms - made_ms <= max_age_ms then break end
      end
      while key and not gone[offset] and not is_enough() do
        local oldest = call('LPOP', tag .. 'of:' .. key) or offset
        if oldest == offset then
          trim_one(key, offset, owner_of[offset], entries[offset])
        else
          local entry, owner = entry_of(key, oldest)
          if entry then trim_one(key, oldest, owner, entry) end
        end
        done = done + 1
      end
      if is_enough() then break end
    end
    flush()
    note_idle(emptied)
    return done
  end

  -- Trim up to `limit` entries, while there are too many, or those that are too old.
  local function trim(limit, are_old_trimmed, newest)
    local done, wanted = 1, 1
    -- A little more than is due: the next plain fires take the short way.
    if count > max_signals then most_signals = max_signals - math.floor(max_signals / 1000) end
    if bytes > max_bytes then most_bytes = max_bytes - math.floor(max_bytes / 1000) end
    while limit > 0 and count > 0 and done > 0 do
      local is_full = count > most_signals or bytes > most_bytes
      if is_full then
        local entries = math.ceil((bytes - most_bytes) / (bytes / count))
        wanted = math.min(READ_AT_ONCE, math.max(count - most_signals, entries))
      elseif not are_old_trimmed then
        return
      end
      done = trim_some(math.min(wanted, limit), is_full, newest)
      -- Choosing whose entries to trim takes as long as trimming some.
      limit, wanted = limit - done - 2, READ_AT_ONCE
    end
  end

  made = {remove_of = remove_of, flush = flush, trim = trim}
  return made
end

-- Whether the loss of an entry was reported with that of a later one of the same epoch. Another report
-- does not do: the primary of before may have taken the entry after that.
local function is_reported(reported, lost)
  local epoch, offset = string.match(lost, '^(%w+)-(%d+)$')
  local of, last = string.match(reported, '^(%w+)-(%d+)$')
  return epoch == of and tonumber(offset) <= tonumber(last)
end

if command == 'append' then
  local at, results, appended, woken, first, newest = 5, {}, {}, {}, head + 1, ''
  -- How many entries of keys with a full history are removed yet.
  local room, now = TRIMMED_AT_ONCE, now_ms .. ''
  while at <= #ARGV do
    -- One request: its entries are appended all or none.
    local name, owner, fingerprint, entry = ARGV[at]
    if name ~= '' then
      owner, fingerprint, entry = ARGV[at + 1], ARGV[at + 2], tag .. 'repeat:' .. name
      at = at + 2
    end
    local share, unless_after, items = ARGV[at + 1], ARGV[at + 2], at + 4
    local sharer = #share == TRACE and '' or string.sub(share, 1, OWNER)
    at = items + 3 * ARGV[at + 3]
    local result
    if name ~= '' then
      local known = call('GET', entry)
      if is_of_another(known, fingerprint) then
        result = 'reused'
      elseif known then
        result = 'known ' .. string.sub(known, #fingerprint + 2)
      end
    end
    if not result and unless_after ~= '' then
      local last = record(ARGV[items + 1])[2]
      if tonumber(last) > tonumber(unless_after) then result = 'passed ' .. last end
    end
    if not result then
      if at - items > 3 then
        local names = {}
        for index = items + 1, at - 2, 3 do names[#names + 1] = ARGV[index] end
        load(names)
      end
      local seqs, before, size = {}, head, 0
      local shared, shown = added[sharer] or {bytes = 0}, share == '' and ' ' or '@' .. share .. ' '
      added[sharer] = shared
      for index = items, at - 3, 3 do
        -- "TYPEseq at_ms previous length@share key value": f fired, d dropped, x lost. Only some
        -- have a share: an owner, the trace context in which it was appended, or both.
        local type, key, value = ARGV[index], ARGV[index + 1], ARGV[index + 2]
        local found = record(key)
        if type ~= 'x' or not is_reported(found[4], value) then
          head = head + 1
          local offset, offsets, previous = head .. '', tag .. 'of:' .. key, found[2]
          found[2], changed[key] = offset, true
          if type == 'f' then
            found[1] = found[1] + 1 .. ''
          else
            if type == 'x' then found[4] = value end
            value, found[3] = '', offset
          end
          if type == 'd' and not lack_of_rights() then
            rare().remove_of(key, call('LRANGE', offsets, 0, -1))
            call('DEL', offsets)
          end
          local text = type .. found[1] .. ' ' .. now .. ' ' .. previous .. ' ' .. #key .. shown .. key
            .. value
          call('XADD', log, offset .. '-0', 'e', text)
          shared[#shared + 1], shared[#shared + 2], size = offset, offset, size + #text
          local listed = call('RPUSH', offsets, offset)
          if listed == 1 then woken[#woken + 1] = key end
          room = room + 1
          if listed > max_listed and room > 0 and not lack_of_rights() then
            local removed = call('LPOP', offsets, math.min(listed - max_per_key, room))
            rare().remove_of(key, removed)
            if type == 'f' then found[3] = removed[#removed] end
            room = room - #removed
          end
          seqs[#seqs + 1] = found[1]
          appended[#appended + 1] = #text .. ':' .. text
        end
      end
      count, bytes, shared.bytes = count + #seqs, bytes + size, shared.bytes + size
      result = before .. ' ' .. now .. ' ' .. table.concat(seqs, ',') .. ' '
      if name ~= '' then
        repeats().keep(entry, owner, name, fingerprint .. ' ' .. epoch .. ' ' .. result)
      end
      result, newest = 'ok ' .. result, sharer
    end
    results[#results + 1] = net(result)
  end
  if #appended > 0 then
    many('ZREM', idle, woken)
    if made then made.flush() else add_shares() end
    if (count > max_signals or bytes > max_bytes) and not lack_of_rights() then
      rare().trim(#appended + TRIMMED_AT_ONCE, false, newest)
    end
    store_records()
    store_counts()
    local entries = table.concat(appended)
    -- Without entries, it has followers read the log.
    if #entries > MAX_MESSAGE then entries = '' end
    redis.pcall('PUBLISH', channel, epoch .. ' ' .. first .. ' ' .. entries)
  end
  return net(epoch) .. table.concat(results)
elseif command == 'read' then
  local after, limit = tonumber(ARGV[5]), tonumber(ARGV[6])
  -- A write that changes nothing: why the server refuses it, if it does. First, as it refuses none
  -- behind one that it has taken.
  local probe, refusal = redis.pcall('HSETNX', meta, 'epochs', ''), ''
  for _, code in ipairs({'OOM', 'MISCONF', 'NOREPLICAS'}) do
    if type(probe) == 'table' and string.find(probe.err, code, 1, true) then refusal = code end
  end
  if lack then refusal = lack end
  -- Where nobody listens. What is appended is not refused for it: it has been written by then.
  if refusal == '' and type(redis.pcall('PUBLISH', channel .. ':probe', '')) == 'table' then
    refusal = 'NOPUBLISH'
  end
  local before = count
  if not lack then rare().trim(TRIMMED_AT_ONCE, true) end
  -- Also if only entries in the midst were removed.
  if count < before then
    store_records()
    store_counts()
  end
  if not lack then repeats().forget_expired(TRIMMED_AT_ONCE) end
  local entries, size, from = {}, 0, after + 1
  repeat
    local page = call('XRANGE', log, from, '+', 'COUNT', math.min(limit - #entries, READ_AT_ONCE))
    for _, item in ipairs(page) do
      local offset, entry = string.match(item[1], '^%d+'), item[2][2]
      entries[#entries + 1] = net(offset .. ' ' .. entry)
      size, from = size + #entry, tonumber(offset) + 1
    end
  until #page < READ_AT_ONCE or #entries >= limit or size > MAX_REPLY
  return net(epochs) .. net(head .. '') .. net(trimmed .. '') .. net(hole .. '') .. net(holes .. '')
    .. net(found_shards or shards) .. net(refusal) .. table.concat(entries)
elseif command == 'keys' then
  -- Some of the keys that are known, from a cursor of HSCAN: for each, through which offset it has
  -- lost entries.
  local page = call('HSCAN', keys, ARGV[5], 'COUNT', 1000)
  local rows = {}
  for index = 1, #page[2], 2 do
    local lost = string.match(page[2][index + 1], '^%d+ %d+ (%d+)')
    rows[#rows + 1] = net(page[2][index]) .. net(lost)
  end
  return net(page[1]) .. net(forgotten .. '') .. table.concat(rows)
elseif command == 'expire' then
  -- Nobody knows which keys have lost entries: no epoch from before is valid. Unless that is done.
  local oldest = string.match(epochs, '^[^:]+')
  if oldest == ARGV[5] then
    -- A candidate that has just become an epoch is as good as another.
    epochs = candidate .. ':' .. head
    call('HSET', meta, 'epochs', epochs)
    redis.pcall('PUBLISH', channel, candidate .. ' ' .. head + 1 .. ' ')
  end
  return net(string.match(epochs, '[^,]+$'))
elseif command == 'last' then
  -- Of each key: the offset of its last entry, or the highest that it may have had.
  local names, found = {}, {}
  for index = 5, #ARGV do names[#names + 1] = ARGV[index] end
  load(names)
  for index, key in ipairs(names) do
    local last = records[key][2]
    found[index] = last ~= '0' and last or forgotten
  end
  return table.concat(found, ' ')
elseif command == 'claim' then
  -- Names, of requests that are appended to other logs after this, which is the home of the names.
  local results = {}
  for at = 5, #ARGV, 7 do
    local name, owner, fingerprint, token = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    local held, entry = ARGV[at + 6], tag .. 'repeat:' .. name
    local known = call('GET', entry) or nil
    local found, until_ms, logs = string.match(known or '', ' @(%w+) (%d+) ([%d,]+)$')
    local result = 'claimed'
    if is_of_another(known, fingerprint) and not (found and found == held) then
      result = 'reused'
      -- Perhaps that request has failed before it was appended: its logs know.
      if found and tonumber(until_ms) < now_ms then result = 'doubtful ' .. found .. ' ' .. logs end
    else
      if known and not is_of_another(known, fingerprint) then result = 'repeated' end
      if not known or found then
        local value = ' @' .. token .. ' ' .. now_ms + ARGV[at + 5] .. ' ' .. ARGV[at + 4]
        repeats().keep(entry, owner, name, fingerprint .. value, known)
      end
    end
    results[#results + 1] = net(result)
  end
  return table.concat(results)
elseif command == 'release' then
  -- A name whose request was refused, unless a repeat of that has claimed it meanwhile.
  local entry = tag .. 'repeat:' .. ARGV[5]
  local held = string.match(call('GET', entry) or '', ' @(%w+) %d+ [%d,]+$')
  if held == ARGV[6] then call('DEL', entry) end
  return ''
elseif command == 'known' then
  -- Whether a name was appended here by another request.
  return is_of_another(call('GET', tag .. 'repeat:' .. ARGV[5]), ARGV[6]) and 'another' or ''
else
  -- remember: the response of an idempotent request.
  repeats().keep_response(ARGV[5], ARGV[6], ARGV[7], ARGV[8])
  return ''
end
