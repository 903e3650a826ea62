-- One step of one lease, see purgatory.ownership.lease_store. The tests compare it with a model.
--
-- KEYS[1] is the record of a name, a hash: epoch, version, state, and of a lease that was not
-- released token, instance, address, until_us and lease_us. A lease ends by its until_us, not by
-- the expiry of the key: state and epoch outlive it. Expired leases are not removed either: their
-- owner may go on until another takes the name.
--
-- ARGV: the step, milliseconds to keep the record, the time in microseconds ("" for the server's),
-- and the fields of the step. Reply: is_done, epoch, version, address or "", microseconds left, and
-- state or false.

local KEY, STEP, KEPT_MS = KEYS[1], ARGV[1], ARGV[2]
local now = tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function text(number)
  return string.format('%.0f', number)
end

local found = redis.call(
  'HMGET', KEY, 'epoch', 'version', 'token', 'instance', 'address', 'until_us', 'lease_us')
local epoch, version = tonumber(found[1] or 0), tonumber(found[2] or 0)
local token, instance, address = found[3], found[4], found[5]
local until_us, lease_us = tonumber(found[6] or 0), tonumber(found[7] or 0)

-- After the server's clock was set back, a lease would last for too long.
until_us = math.min(until_us, now + lease_us)

local function reply(is_done, with_state)
  local is_held = until_us > now
  return {
    is_done and 1 or 0, text(epoch), text(version), is_held and address or '',
    text(is_held and until_us - now or 0), with_state and redis.call('HGET', KEY, 'state'),
  }
end

local function extend(given_us)
  lease_us = tonumber(given_us)
  until_us = now + lease_us
  redis.call('HSET', KEY, 'until_us', text(until_us), 'lease_us', text(lease_us))
  redis.call('PEXPIRE', KEY, KEPT_MS)
end

if STEP == 'read' then
  return reply(true, true)
end

require_rights()

if STEP == 'acquire' then
  if token and token ~= ARGV[4] and instance ~= ARGV[5] and until_us > now then
    redis.call('HSET', KEY, 'until_us', text(until_us))
    return reply(false, false)
  end
  if token ~= ARGV[4] then
    epoch = math.max(epoch + 1, now)
    address = ARGV[6]
    redis.call('HSET', KEY, 'epoch', text(epoch), 'token', ARGV[4], 'instance', ARGV[5],
      'address', address)
  end
  extend(ARGV[7])
  return reply(true, true)
end

-- ARGV[4] is the token, and ARGV[5] the fencing epoch.
if token ~= ARGV[4] or epoch ~= tonumber(ARGV[5]) then
  return reply(false, false)
end

if STEP == 'release' then
  redis.call('HDEL', KEY, 'token', 'instance', 'address', 'until_us', 'lease_us')
  redis.call('PEXPIRE', KEY, KEPT_MS)
  until_us = 0
  return reply(true, false)
end

if STEP == 'commit' and tonumber(ARGV[7]) > version then
  version = tonumber(ARGV[7])
  redis.call('HSET', KEY, 'version', text(version))
  if ARGV[8] then
    redis.call('HSET', KEY, 'state', ARGV[8])
  else
    redis.call('HDEL', KEY, 'state')
  end
end
extend(ARGV[6])
return reply(true, false)
