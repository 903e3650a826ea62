-- The log of one shard of signals: KEYS are meta, log, keys and idle, all of one hash tag. Behind
-- them are two for each name that is kept in its home, too: its string, and its owner's sorted set.
--
-- meta    hash: epochs, server and shards (see `begin`), and counts: "head trimmed bytes count seq
--         forgotten", the last two the highest number and offset of keys that `keys` has no longer;
--         " owners count bytes hole holes" follow once there were owners: how many have entries,
--         those of all, the last offset in the midst at which the last entry of a key was removed,
--         and how often that was done
-- log     stream: ids are the offsets; one field, the entry as `pack` makes it
-- keys    hash: key -> "seq last lost ended" (offsets of its last entry, through which it lost any,
--         and of its last entry that is no signal: that one has told every reader)
-- idle    sorted set: keys without entries in the log, by the offset of their last one
-- <tag>of:<key>        list: offsets of the key's entries that are in the log
-- <tag>by:<owner>      sorted set: offsets of the owner's entries; empty name: those of nobody, but
--                      for older ones than any that has an owner
-- <tag>entries_by, <tag>bytes_by  sorted sets: owners, by the number and by the size of their entries
-- <tag>repeat:<name>   string: an idempotent request, kept for some minutes: "fingerprint result",
--                      or "fingerprint @" if only other logs have its entries and this is the home
--                      of its name; "fingerprint @token until_ms logs" if it was claimed before it
--                      was appended to those, which takes until then at most
-- <tag>repeats:<owner> sorted set: the names of one owner's kept requests, by time
--
-- Numbers are below 10^14: ".." writes them as integers. What a request runs for the first time in a
-- while takes the server longer than most commands do: a plain fire returns early, and functions that
-- few requests need are made for them.
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
-- Bytes of entries in one reply, about, and in one message: subscribers have small buffers.
local MAX_REPLY = 2000000
local MAX_MESSAGE = 1000000
local READ_AT_ONCE = 100
-- shard_log.py sets above: REPEAT_MS and REPEATS_PER_OWNER, of names of fires.
-- The digits of an owner and of a trace context, all hexadecimal: scripts from before there were
-- trace contexts take both for an owner, and find the key behind them.
local OWNER, TRACE = 12, 50

local time = call('TIME')
-- An epoch is a history that only grows. Another begins, at the head, whenever the server may have
-- lost writes: it was restarted, or a replica took over. `epochs` lists "name:offset" of each.
local replication = redis.pcall('INFO', 'replication')
if type(replication) ~= 'string' then replication = '' end
local found = call('HMGET', meta, 'epochs', 'server', 'shards', 'counts')
local epochs, server, found_shards = found[1], found[2], found[3]

-- A plain fire: one signal, without conditions or an owner, in a log of this server that has none
-- either and is not full. The same is done below, for any request.
if command == 'append' and #ARGV == 11 and ARGV[9] == 'f' and ARGV[5] == '' and ARGV[7] == ''
  and (ARGV[6] == '' or #ARGV[6] == TRACE) and found[4] then
  local before, unchanged, bytes, count, rest, first_seq, owners = string.match(found[4],
    '^(%d+) (%d+) (%d+) ([1-9]%d*)( (%d+) %d+ ?(%d*).*)$')
  if before and (owners == '' or owners == '0')
    and string.find(replication, 'role:master', 1, true)
    and string.find(replication, 'master_replid:' .. server, 1, true) then
    local share, key = ARGV[6], ARGV[10]
    local seq, last, losses = string.match(call('HGET', keys, key) or first_seq .. ' 0 0 0',
      '^(%d+) (%d+)( %d+ %d+)$')
    local now_ms = string.format('%s%03d', time[1], math.floor(time[2] / 1000))
    local offset, offsets = string.format('%d', before + 1), tag .. 'of:' .. key
    seq = string.format('%d', seq + 1)
    local entry = 'f' .. seq .. ' ' .. now_ms .. ' ' .. last .. ' ' .. #key
      .. (share == '' and ' ' or '@' .. share .. ' ') .. key .. ARGV[11]
    count, bytes = count + 1, bytes + #entry
    if count <= max_signals and bytes <= max_bytes and #entry < MAX_MESSAGE then
      local listed = call('RPUSH', offsets, offset)
      -- Of a log that somebody has deleted, nothing is made anew here.
      if listed <= max_listed and call('XADD', log, 'NOMKSTREAM', offset .. '-0', 'e', entry) then
        if listed == 1 then call('ZREM', idle, key) end
        call('HSET', keys, key, seq .. ' ' .. offset .. losses)
        call('HSET', meta, 'counts',
          string.format('%s %s %d %d%s', offset, unchanged, bytes, count, rest))
        local epoch = string.match(epochs, '^.*,(%w+):') or string.match(epochs, '^%w+')
        call('PUBLISH', channel, epoch .. ' ' .. offset .. ' ' .. #entry .. ':' .. entry)
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
if not epochs or not count or count ~= call('XLEN', log) then
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

local function record(key)
  local text = call('HGET', keys, key)
  if not text then return forgotten_seq, 0, 0, 0 end
  local seq, last, lost, ended = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
  return tonumber(seq), tonumber(last), tonumber(lost), tonumber(ended)
end

local function store_record(key, seq, last, lost, ended)
  call('HSET', keys, key, seq .. ' ' .. last .. ' ' .. lost .. ' ' .. ended)
end

local function is_of_another(known, fingerprint)
  return known and string.sub(known, 1, #fingerprint + 1) ~= fingerprint .. ' '
end

-- Keep what a name stands for, in the string `entry` and the sorted set `names` of its owner.
local function keep(entry, names, name, value)
  call('SET', entry, value, 'PX', REPEAT_MS)
  if call('ZADD', names, now_ms, name) == 1 and call('ZCARD', names) > REPEATS_PER_OWNER then
    call('DEL', string.sub(entry, 1, -#name - 1) .. call('ZPOPMIN', names)[1])
  end
  call('PEXPIRE', names, REPEAT_MS)
end

-- Owners and removals.
local made
local function rare()
  if made then return made end

  local function key_of(entry)
    local _, finish, length = string.find(entry, '^%a%d+ %d+ %d+ (%d+)@?[^ ]* ')
    return string.sub(entry, finish + 1, finish + tonumber(length))
  end

  local function owner_of(entry)
    local share = string.match(entry, '^%a%d+ %d+ %d+ %d+@([^ ]*) ') or ''
    return #share == TRACE and '' or string.sub(share, 1, OWNER)
  end

  -- Count an entry of an owner, or of nobody: nothing to do while there are no owners.
  local function add_share(owner, offset, size)
    if owner == '' and owners == 0 then return end
    call('ZADD', tag .. 'by:' .. owner, offset, offset)
    if owner == '' then return end
    if tonumber(call('ZINCRBY', tag .. 'entries_by', 1, owner)) == 1 then owners = owners + 1 end
    call('ZINCRBY', tag .. 'bytes_by', size, owner)
    owned, owned_bytes = owned + 1, owned_bytes + size
  end

  local function remove_share(owner, offset, size)
    if owners == 0 then return end
    call('ZREM', tag .. 'by:' .. owner, offset)
    if owner == '' then return end
    owned, owned_bytes = owned - 1, owned_bytes - size
    call('ZINCRBY', tag .. 'bytes_by', -size, owner)
    if tonumber(call('ZINCRBY', tag .. 'entries_by', -1, owner)) > 0 then return end
    call('ZREM', tag .. 'entries_by', owner)
    call('ZREM', tag .. 'bytes_by', owner)
    owners = owners - 1
    if owners == 0 then call('DEL', tag .. 'by:') end
  end

  local function remove(offset, entry)
    call('XDEL', log, offset .. '-0')
    count, bytes = count - 1, bytes - #entry
    remove_share(owner_of(entry), offset, #entry)
  end

  -- Remove the entry of `key` at an offset, unless that is of another: its list may be from before
  -- somebody deleted the log.
  local function remove_of(key, offset)
    local old = call('XRANGE', log, offset, offset)[1]
    if old and key_of(old[2][2]) == key then remove(tonumber(offset), old[2][2]) end
  end

  -- Return an owner whose part of the log is of average size or above: `newest`, the owner of the last
  -- entry, if it is; else the largest. The last entry is the one that others have to make room for.
  local function crowding(newest)
    local set, total, of_owners = tag .. 'entries_by', count, owned
    if bytes > max_bytes then set, total, of_owners = tag .. 'bytes_by', bytes, owned_bytes end
    local parts = owners + (count > owned and 1 or 0)
    local function part(owner)
      if owner == '' then return total - of_owners end
      return tonumber(call('ZSCORE', set, owner) or 0)
    end
    local entries = count - owned
    if newest ~= '' then entries = tonumber(call('ZSCORE', tag .. 'entries_by', newest) or 0) end
    if entries > 1 and part(newest) * parts >= total then return newest end
    local largest, most = newest, -1
    if newest ~= '' and count > owned then largest, most = '', part('') end
    local top = call('ZREVRANGE', set, 0, 1, 'WITHSCORES')
    for index = 1, #top, 2 do
      if top[index] ~= newest and tonumber(top[index + 1]) > most then
        largest, most = top[index], tonumber(top[index + 1])
      end
    end
    return largest
  end

  -- Return the entry to remove for one of `newest`: of the owner's oldest entry's key the oldest one.
  local function crowding_entry(oldest, newest)
    local owner = crowding(newest)
    if owner == owner_of(oldest[2][2]) then return oldest end
    local offset = call('ZRANGE', tag .. 'by:' .. owner, 0, 0)[1]
    local entry = offset and call('XRANGE', log, offset, offset)[1]
    if not entry then return oldest end
    local first = call('LINDEX', tag .. 'of:' .. key_of(entry[2][2]), 0)
    return first and call('XRANGE', log, first, first)[1] or oldest
  end

  local function trim(limit, are_old_trimmed, newest)
    while limit > 0 and count > 0 do
      local is_full = count > max_signals or bytes > max_bytes
      if not (is_full or are_old_trimmed) then return end
      local oldest = call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
      local removed = oldest
      if is_full and owners > 0 then
        newest = newest or owner_of(call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1][2][2])
        removed = crowding_entry(oldest, newest)
      end
      local offset, entry = tonumber((string.match(removed[1], '^%d+'))), removed[2][2]
      local made_ms = tonumber((string.match(entry, '^%a%d+ (%d+)')))
      if not is_full and now_ms - made_ms <= max_age_ms then return end
      local key = key_of(entry)
      remove(offset, entry)
      if removed == oldest then trimmed = math.max(trimmed, offset) end
      call('LPOP', tag .. 'of:' .. key)
      local seq, last, lost, ended = record(key)
      store_record(key, seq, last, math.max(lost, offset), ended)
      if last == offset then
        -- A later entry of the key would tell who has not read this one.
        if removed ~= oldest then hole, holes = math.max(hole, offset), holes + 1 end
        call('ZADD', idle, offset, key)
        if call('ZCARD', idle) > max_signals then
          local gone = call('ZPOPMIN', idle)[1]
          local gone_seq, gone_last = record(gone)
          forgotten_seq, forgotten = math.max(forgotten_seq, gone_seq), math.max(forgotten, gone_last)
          call('HDEL', keys, gone)
        end
      end
      limit = limit - 1
    end
  end

  made = {add_share = add_share, remove_of = remove_of, trim = trim}
  return made
end

if command == 'append' then
  local at, results, appended, first, newest, homes = 5, {}, {}, head + 1, '', 5
  while at <= #ARGV do
    -- One request: its entries are appended all or none.
    local name, owner, fingerprint, entry, home, home_names = ARGV[at]
    if name ~= '' then
      owner, fingerprint = ARGV[at + 1], ARGV[at + 2]
      entry = tag .. 'repeat:' .. owner .. name
      if ARGV[at + 3] ~= '' then home, home_names, homes = KEYS[homes], KEYS[homes + 1], homes + 2 end
      at = at + 3
    end
    local share, unless_after, items = ARGV[at + 1], ARGV[at + 2], at + 4
    local sharer = #share == TRACE and '' or string.sub(share, 1, OWNER)
    at = items + 3 * ARGV[at + 3]
    local result
    if name ~= '' then
      local known = call('GET', entry)
      if is_of_another(known, fingerprint)
        or home and is_of_another(call('GET', home), fingerprint) then
        result = 'reused'
      elseif known then
        result = 'known ' .. string.sub(known, #fingerprint + 2)
      end
    end
    if not result and unless_after ~= '' then
      local _, last = record(ARGV[items + 1])
      if last > tonumber(unless_after) then result = 'passed ' .. last end
    end
    if not result then
      local seqs, before = {}, head
      for index = items, at - 3, 3 do
        -- "TYPEseq at_ms previous length@share key value": f fired, d dropped, x lost. Only some
        -- have a share: an owner, the trace context in which it was appended, or both.
        local type, key, value = ARGV[index], ARGV[index + 1], ARGV[index + 2]
        local seq, last, lost, ended = record(key)
        if type ~= 'x' or ended <= tonumber(value) then
          head = head + 1
          local offsets = tag .. 'of:' .. key
          if type == 'f' then
            seq = seq + 1
          else
            value, lost, ended = '', head, head
          end
          if type == 'd' then
            local remove_of = rare().remove_of
            for _, offset in ipairs(call('LRANGE', offsets, 0, -1)) do remove_of(key, offset) end
            call('DEL', offsets)
          end
          local text = type .. seq .. ' ' .. now_ms .. ' ' .. last .. ' ' .. #key
            .. (share == '' and ' ' or '@' .. share .. ' ') .. key .. value
          call('XADD', log, head .. '-0', 'e', text)
          count, bytes = count + 1, bytes + #text
          if sharer ~= '' or owners > 0 then rare().add_share(sharer, head, #text) end
          local listed = call('RPUSH', offsets, head)
          if listed == 1 then call('ZREM', idle, key) end
          if listed > max_listed then
            local removed = call('LRANGE', offsets, 0, listed - max_per_key - 1)
            call('LTRIM', offsets, #removed, -1)
            local remove_of = rare().remove_of
            for _, offset in ipairs(removed) do remove_of(key, offset) end
            lost = math.max(lost, tonumber(removed[#removed]))
          end
          store_record(key, seq, head, lost, ended)
          seqs[#seqs + 1], appended[#appended + 1] = seq, net(text)
        end
      end
      result = before .. ' ' .. now_ms .. ' ' .. table.concat(seqs, ',') .. ' '
      if name ~= '' then
        keep(entry, tag .. 'repeats:' .. owner, name, fingerprint .. ' ' .. epoch .. ' ' .. result)
        if home then keep(home, home_names, name, fingerprint .. ' @') end
      end
      result, newest = 'ok ' .. result, sharer
    end
    results[#results + 1] = net(result)
  end
  if #appended > 0 then
    if count > max_signals or bytes > max_bytes then
      rare().trim(#appended + TRIMMED_AT_ONCE, false, newest)
    end
    store_counts()
    local entries = table.concat(appended)
    -- Without entries, it has followers read the log.
    if #entries > MAX_MESSAGE then entries = '' end
    call('PUBLISH', channel, epoch .. ' ' .. first .. ' ' .. entries)
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
  local before = count
  rare().trim(TRIMMED_AT_ONCE, true)
  -- Also if only entries in the midst were removed.
  if count < before then store_counts() end
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
    .. net(found_shards or shards) .. net(now_ms .. '') .. net(refusal) .. table.concat(entries)
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
    call('PUBLISH', channel, candidate .. ' ' .. head + 1 .. ' ')
  end
  return net(string.match(epochs, '[^,]+$'))
elseif command == 'last' then
  -- Of each key: the offset of its last entry, or the highest that it may have had.
  local found = {}
  for index = 5, #ARGV do
    local _, last = record(ARGV[index])
    found[#found + 1] = last > 0 and last or forgotten
  end
  return table.concat(found, ' ')
elseif command == 'claim' then
  -- Names, of requests that are appended to other logs after this, which is the home of the names.
  local results, keys_at = {}, 5
  for at = 5, #ARGV, 6 do
    local name, fingerprint, token, held = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 5]
    local entry, names = KEYS[keys_at], KEYS[keys_at + 1]
    keys_at = keys_at + 2
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
        keep(entry, names, name, fingerprint .. ' @' .. token .. ' ' .. now_ms + ARGV[at + 4] .. ' '
          .. ARGV[at + 3])
      end
    end
    results[#results + 1] = net(result)
  end
  return table.concat(results)
elseif command == 'release' then
  -- A name whose request was refused, unless a repeat of that has claimed it meanwhile.
  local held = string.match(call('GET', KEYS[5]) or '', ' @(%w+) %d+ [%d,]+$')
  if held == ARGV[6] then
    call('DEL', KEYS[5])
    call('ZREM', KEYS[6], ARGV[5])
  end
  return ''
elseif command == 'known' then
  -- Whether a name was appended here by another request.
  return is_of_another(call('GET', tag .. 'repeat:' .. ARGV[5]), ARGV[6]) and 'another' or ''
else
  -- remember: the response of an idempotent request, in place of its result.
  local name = tag .. 'repeat:' .. ARGV[5]
  local fingerprint, response = ARGV[6], ARGV[7]
  local known = call('GET', name)
  if known and not is_of_another(known, fingerprint) then
    call('SET', name, fingerprint .. ' = ' .. response, 'KEEPTTL')
  end
  return ''
end
