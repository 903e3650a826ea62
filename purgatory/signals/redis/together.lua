-- Several logs of one server: `append_one` is log.lua, with the keys and arguments of one of them.
-- ARGV is, log by log: the number of its KEYS, that of its arguments, and those.
local parts, at, key_at = {}, 1, 1
while at <= #ARGV do
  local keys, arguments = {}, {}
  for index = 1, tonumber(ARGV[at]) do keys[index] = KEYS[key_at + index - 1] end
  for index = 1, tonumber(ARGV[at + 1]) do arguments[index] = ARGV[at + 1 + index] end
  parts[#parts + 1] = {keys, arguments}
  at, key_at = at + 2 + #arguments, key_at + #keys
end
local function is_of_another(key, fingerprint)
  local known = redis.call('GET', key)
  return known and string.sub(known, 1, #fingerprint + 1) ~= fingerprint .. ' '
end
-- A name that another request has in one of the logs, or in its home, refuses all of it, before
-- anything is appended.
for _, part in ipairs(parts) do
  local keys, name, fingerprint = part[1], part[2][5], part[2][7]
  if name ~= '' then
    local entry = string.sub(keys[1], 1, -5) .. 'repeat:' .. name
    if is_of_another(entry, fingerprint) or keys[5] and is_of_another(keys[5], fingerprint) then
      return {}
    end
  end
end
-- The first log may need fewer rights than the next.
require_rights()
local results = {}
for _, part in ipairs(parts) do
  local result = append_one(part[1], part[2])
  -- As of a server that is a replica now, and so of the first one.
  if type(result) ~= 'string' then return result end
  results[#results + 1] = result
end
return results
