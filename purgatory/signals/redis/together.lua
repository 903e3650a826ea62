-- Several logs of one server: `append_one` is log.lua, with the keys and arguments of one of them.
-- KEYS are those of each log, 4 by 4; ARGV is the number of its arguments and those, log by log.
local parts, at = {}, 1
for first = 1, #KEYS, 4 do
  local arguments = {}
  for index = 1, tonumber(ARGV[at]) do arguments[index] = ARGV[at + index] end
  at = at + 1 + #arguments
  local keys = {KEYS[first], KEYS[first + 1], KEYS[first + 2], KEYS[first + 3]}
  parts[#parts + 1] = {keys, arguments}
end
-- A name that another request has in one of the logs refuses all of it, before anything is appended.
for _, part in ipairs(parts) do
  local owner, name, fingerprint = part[2][5], part[2][6], part[2][7]
  if name ~= '' then
    local known = redis.call('GET', string.sub(part[1][1], 1, -5) .. 'repeat:' .. owner .. name)
    if known and string.sub(known, 1, #fingerprint + 1) ~= fingerprint .. ' ' then return {} end
  end
end
local results = {}
for _, part in ipairs(parts) do
  local result = append_one(part[1], part[2])
  -- As of a server that is a replica now, and so of the first one.
  if type(result) ~= 'string' then return result end
  results[#results + 1] = result
end
return results
