-- time | retention in seconds | after this id | at most | ages are counted back from this at the latest, or '':
-- operations, in the order of their ids, that may be old enough to be retired. Returns now, how far every reader of
-- outcomes has come (or nothing), the id to go on after ('' at the end), and the ids.
local now = tell_time(ARGV[1])
local counted = tonumber(now)
if ARGV[5] ~= '' then
  counted = math.min(counted, tonumber(ARGV[5]))
end
local before = counted - tonumber(ARGV[2])
local read_to = false
for _, seq in ipairs(redis.call('HVALS', P .. 'cursors')) do
  if not read_to or tonumber(seq) < tonumber(read_to) then
    read_to = seq
  end
end
local from = ARGV[3] == '' and '-' or ('(' .. NUL .. ARGV[3])
local members = redis.call('ZRANGEBYLEX', P .. 'x:i', from, '+', 'LIMIT', 0, ARGV[4])
local old, last = {}, ''
for _, member in ipairs(members) do
  local id = id_in(member)
  local found = redis.call('HMGET', P .. 'o:' .. id, 'f', 'm', 'u')
  if found[1] then
    if tonumber(string.match(found[1], '^%[([^,]+),')) > before then
      last = ''
      break
    end
    local ended = tonumber(string.match(found[2], '^%[[^,]+,[^,]+,([^,]+),'))
    -- If its customer never acted and it is not due any more: the time when it was last written.
    ended = ended or tonumber(string.match(found[2], '^%[([^,]+),[^,]+,null,"requires_action",null,'))
    if ended and ended <= before and not found[3] then
      old[#old + 1] = id
    end
  end
  last = id
end
if #members < tonumber(ARGV[4]) then
  last = ''
end
return {now, read_to, last, old}
