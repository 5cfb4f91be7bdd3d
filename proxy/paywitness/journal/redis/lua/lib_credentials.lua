-- An acceptance of three: account, credential, the sealed one.
local function accept(at, now)
  local account, credential, sealed = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  if credential == '' then
    return
  end
  local pair = account .. NUL .. credential
  redis.call('HSET', P .. 'credentials', pair, now)
  if sealed ~= '' then
    redis.call('HSET', P .. 'sealed_credentials', pair, string.sub(sealed, 2))
  end
  if sealed ~= '' or redis.call('HEXISTS', P .. 'sealed_credentials', pair) == 1 then
    redis.call('ZADD', P .. 'accepted:' .. account, now, credential)
  end
end
