-- An alias has three lines: operation id, index word of its client key, the rest. Refused keys are in `refused` too, by
-- the time of the refusal.
local function alias_entries(key, alias)
  local id, word = string.match(alias, '^([^\n]*)\n([^\n]*)\n')
  return id, word .. NUL .. key .. NUL .. id, id .. NUL .. key
end

local function refused_at(alias)
  return string.match(alias, ',"refused",([^,%]]+)%]$')
end

local function forget_alias(key, alias)
  local _, by_client_key, of_operation = alias_entries(key, alias)
  redis.call('ZREM', P .. 'x:k', by_client_key)
  redis.call('ZREM', P .. 'x:a', of_operation)
  redis.call('ZREM', P .. 'refused', key)
  redis.call('HDEL', P .. 'keys', 'a' .. key)
end

local function keep_alias(key, alias)
  local before = redis.call('HGET', P .. 'keys', 'a' .. key)
  if before then
    forget_alias(key, before)
  end
  local _, by_client_key, of_operation = alias_entries(key, alias)
  redis.call('ZADD', P .. 'x:k', 0, by_client_key)
  redis.call('ZADD', P .. 'x:a', 0, of_operation)
  redis.call('HSET', P .. 'keys', 'a' .. key, alias)
  if refused_at(alias) then
    redis.call('ZADD', P .. 'refused', refused_at(alias), key)
  end
end
