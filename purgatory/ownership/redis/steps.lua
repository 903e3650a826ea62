-- One step of one lease, see purgatory.ownership.lease_store. The tests compare it with a model.
--
-- KEYS[1] is the record of a name, a hash: epoch, version, state, and of a lease that was not
-- released token, instance, address, until_us and lease_us. A lease ends by its until_us, not by
-- the expiry of the key: state and epoch outlive it. Expired leases are not removed either: their
-- owner may go on until another takes the name.
--
-- ARGV: the step, milliseconds to keep the record, the time in microseconds ("" for the server's),
-- and the fields of the step, of which each step uses some. Reply: is_done, epoch, version, address or "", microseconds left, and
-- state or false.

local KEY, STEP, KEPT_MS = KEYS[1], ARGV[1], ARGV[2]
local TOKEN, EPOCH, LEASE_US, INSTANCE, ADDRESS = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local VERSION, STATE = tonumber(ARGV[9]), ARGV[10]
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

local function extend()
  lease_us = tonumber(LEASE_US)
  until_us = now + lease_us
  redis.call('HSET', KEY, 'until_us', text(until_us), 'lease_us', text(lease_us))
  redis.call('PEXPIRE', KEY, KEPT_MS)
end

if STEP == 'read' then
  return reply(true, true)
end

require_rights()

if STEP == 'acquire' then
  if token and token ~= TOKEN and instance ~= INSTANCE and until_us > now then
    redis.call('HSET', KEY, 'until_us', text(until_us))
    return reply(false, false)
  end
  if token ~= TOKEN then
    epoch = math.max(epoch + 1, now)
    address = ADDRESS
    redis.call('HSET', KEY, 'epoch', text(epoch), 'token', TOKEN, 'instance', INSTANCE,
      'address', address)
  end
  extend()
  return reply(true, true)
end

-- By its token and its fencing epoch.
if token ~= TOKEN or epoch ~= tonumber(EPOCH) then
  return reply(false, false)
end

if STEP == 'release' then
  redis.call('HDEL', KEY, 'token', 'instance', 'address', 'until_us', 'lease_us')
  redis.call('PEXPIRE', KEY, KEPT_MS)
  until_us = 0
  return reply(true, false)
end

if STEP == 'commit' and VERSION > version then
  version = VERSION
  redis.call('HSET', KEY, 'version', text(version))
  if STATE then
    redis.call('HSET', KEY, 'state', STATE)
  else
    redis.call('HDEL', KEY, 'state')
  end
end
extend()
return reply(true, false)
