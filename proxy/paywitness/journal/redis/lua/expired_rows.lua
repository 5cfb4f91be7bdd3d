-- ids ...: for each that exists, its row and its aliases.
local found = {}
for _, id in ipairs(ARGV) do
  local operation = row(id, false)
  if operation then
    local aliases = {}
    local from = id .. NUL
    for _, member in ipairs(redis.call('ZRANGEBYLEX', P .. 'x:a', '[' .. from, '[' .. from .. '\255')) do
      local key = string.sub(member, #from + 1)
      local alias = redis.call('HGET', P .. 'keys', 'a' .. key)
      if alias then
        aliases[#aliases + 1] = {key, alias}
      end
    end
    found[#found + 1] = {operation, aliases}
  end
end
return found
