-- Times and durations are milliseconds of this server's clock; shares are parts from 0 to 1; counts are calls.
--
-- The circuit of one provider and group: core/circuit.py in Lua, move for move. A test runs both through the same
-- sequences and compares every field, so change both or neither.
--
-- KEYS 1 circuit (hash)  2 rows (hash: sidecar -> its counts)  3 leases (sorted set: lease -> until)
--      4 holds (sorted set: party -> until)  5 when each hold was last asked for (sorted set, no two alike)
--      6 calls that were asked to wait (hash: sidecar -> time, epoch, recent, whole)
-- An earlier release shares 1 to 3, with a number more in each row and `gate` in the circuit, which are its own.
-- ARGV 1 verb  2 draw in [0, 1)  3 minimum  4 minimum to open  5-7 open at bad, unknown, slow
--      8-11 degrade at bad, unknown, slow, throttled
--   report   12 sidecar  13 epoch  14-18 recent counts  19-23 whole counts  24-25 recent and whole calls that were asked
--            to wait  26 up to which change of holds the sidecar knows them  27.. party, how long it was asked to wait
--   take     12 lease  13 how long it lasts
--   vote     12 lease  13 '1' well, '0' not, '' no vote
--   force    12 state  13 for how long  14 actor  15 reason
--   release
-- Reply: granted, now, sidecars, then the circuit's fields as in FIELDS. To a report also up to which change of holds it
--        tells, and party and until of each hold that changed.

local STALE, JUDGE_EVERY, QUORUM_SHARE = 2000, 200, 0.3
local OPEN_BASE, OPEN_MAX, OPEN_GROWTH, GROWTHS_MAX = 1000, 1500, 1.5, 20
local PROBES_MAX, PROBES_OK, BAD_AFTER_OPEN_MAX, BAD_PROBES_LEAST = 3, 5, 0.5, 2
local RAMP_MINIMUM, RAMP_STAGE, RAMP_STAGES = 5, 750, 3
local CLEAN, PATIENCE, GATE_MAX, GATE_LEAST = 10000, 10000, 30000, 3
local HOLDS_MAX, ASKED_WITHIN, TOLD_MAX = 10000, 10000, 200
local KEPT = 86400000 -- an unused circuit is forgotten after a day: it is closed

local FIELDS = {'state', 'version', 'epoch', 'since', 'until', 'opened', 'ok', 'bad', 'patience', 'troubled', 'held',
  'judged', 'actor', 'reason'}
local WORDS = {state = 'closed', actor = '', reason = ''}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local draw, minimum, minimum_to_open = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local open_at = {bad = tonumber(ARGV[5]), unknown = tonumber(ARGV[6]), slow = tonumber(ARGV[7]), throttled = 2}
local degrade_at = {bad = tonumber(ARGV[8]), unknown = tonumber(ARGV[9]), slow = tonumber(ARGV[10]),
  throttled = tonumber(ARGV[11])}

local circuit, changed = {}, false
local stored = redis.call('HMGET', KEYS[1], unpack(FIELDS))
for i, name in ipairs(FIELDS) do
  if WORDS[name] then circuit[name] = stored[i] or WORDS[name] else circuit[name] = tonumber(stored[i] or '0') end
end
local forced = circuit.actor ~= ''

local function text(value)
  if type(value) == 'number' then return string.format('%.0f', value) end
  return value
end

local function set(name, value)
  circuit[name] = value
  changed = true
end

-- 0 if it is not there: each key may have been evicted alone.
local function score(key, member)
  return tonumber(redis.call('ZSCORE', key, member) or '0')
end

-- how a state is entered

local function enter(state, until_at, patience, actor, reason)
  set('version', circuit.version + 1)
  if (state ~= 'closed' and state ~= 'degraded') or actor then circuit.epoch = circuit.version end
  circuit.state, circuit.since = state, now
  circuit['until'], circuit.patience = until_at or 0, patience or 0
  circuit.ok, circuit.bad = 0, 0
  circuit.actor, circuit.reason = actor or '', reason or ''
  forced = actor ~= nil
  redis.call('DEL', KEYS[3])
end

local function open()
  local opened = circuit.opened
  local lasts = math.min(OPEN_MAX, OPEN_BASE * OPEN_GROWTH ^ math.min(opened, GROWTHS_MAX))
  lasts = math.floor(lasts * (0.8 + 0.4 * draw))
  enter('open', math.max(now + lasts, circuit.held))
  circuit.opened = math.min(opened + 1, GROWTHS_MAX)
end

local function end_of_force()
  if circuit.state == 'open' then enter('half_open', 0, now + PATIENCE) else enter('closed') end
end

-- what time alone changes

local function advance()
  if forced then
    if now >= circuit['until'] then end_of_force() end
  elseif circuit.state == 'open' then
    if now >= circuit['until'] then enter('half_open', 0, now + PATIENCE) end
  elseif circuit.state == 'half_open' then
    if now >= circuit.patience then enter('ramp') end
  elseif circuit.state == 'ramp' then
    if now - circuit.since >= RAMP_STAGE * RAMP_STAGES then enter('closed') end
  end
end

-- how it is judged

local function reached(at, c)
  return c.total > 0 and (c.bad / c.total >= at.bad or c.unknown / c.total >= at.unknown or c.slow / c.total >= at.slow
    or c.throttled / c.total >= at.throttled)
end

local function nothing()
  return {total = 0, bad = 0, slow = 0, unknown = 0, throttled = 0, speaking = 0, bad_rows = 0}
end

-- No table a row: of all that this script does, only this is done hundreds of times.
local function sum(into, total, bad, slow, unknown, throttled)
  if total == 0 then return end
  into.total, into.bad, into.slow = into.total + total, into.bad + bad, into.slow + slow
  into.unknown, into.throttled = into.unknown + unknown, into.throttled + throttled
  into.speaking = into.speaking + 1
  if bad / total >= open_at.bad or unknown / total >= open_at.unknown or slow / total >= open_at.slow then
    into.bad_rows = into.bad_rows + 1
  end
end

local ROW = '^' .. string.rep('(%d+) ', 12) .. '(%d+)$'

-- Calls that were asked to wait, of both spans: seldom any.
local function asked_of(epoch)
  local all = redis.call('HGETALL', KEYS[6])
  local recent, whole = 0, 0
  for i = 1, #all, 2 do
    local at, of, r, w = string.match(all[i + 1], '^(%d+) (%d+) (%d+) (%d+)$')
    if not at or now - at > STALE then
      redis.call('HDEL', KEYS[6], all[i])
    elseif of == epoch then
      recent, whole = recent + tonumber(r), whole + tonumber(w)
    end
  end
  return {recent, whole}
end

-- All rows that are fresh; of those that belong to this epoch, the sums of both spans.
local function gather()
  local all = redis.call('HGETALL', KEYS[2])
  local epoch = text(circuit.epoch)
  local reporting, spans = 0, {nothing(), nothing()}
  for i = 1, #all, 2 do
    local at, of, rt, rb, rs, ru, rh, wt, wb, ws, wu, wh = string.match(all[i + 1], ROW)
    if not at or now - at > STALE then -- gone; or not of this version
      redis.call('HDEL', KEYS[2], all[i])
    else
      reporting = reporting + 1
      if of == epoch and wt ~= '0' then
        sum(spans[1], tonumber(rt), tonumber(rb), tonumber(rs), tonumber(ru), tonumber(rh))
        sum(spans[2], tonumber(wt), tonumber(wb), tonumber(ws), tonumber(wu), tonumber(wh))
      end
    end
  end
  return reporting, spans
end

local function gate(spans)
  if redis.call('ZCARD', KEYS[5]) < GATE_LEAST then return end
  local asked, met = asked_of(text(circuit.epoch)), false
  for i, s in ipairs(spans) do
    if asked[i] > 0 and asked[i] >= degrade_at.throttled * s.total then met = true end
  end
  if not met then return end
  local lately = redis.call('ZRANGEBYSCORE', KEYS[5], text(now - ASKED_WITHIN), '+inf', 'WITHSCORES')
  local parties, first, latest = 0, 0, 0
  for i = 1, #lately, 2 do
    if lately[i] ~= '' then -- '' is everyone: not one among several
      parties = parties + 1
      if parties == 1 then first = tonumber(lately[i + 1]) end
      latest = math.max(latest, score(KEYS[4], lately[i]))
    end
  end
  local until_at = math.min(latest, first + GATE_MAX)
  if parties < GATE_LEAST or until_at <= math.max(now, circuit.held) then return end
  set('held', until_at)
  if circuit.state == 'open' then circuit['until'] = math.max(circuit['until'], until_at) end
end

-- who is held

local function drop(parties)
  for _, party in ipairs(parties) do
    redis.call('ZREM', KEYS[4], party)
    redis.call('ZREM', KEYS[5], party)
  end
end

local function keep_for(left)
  for _, key in ipairs({KEYS[4], KEYS[5]}) do
    if redis.call('PTTL', key) < left then redis.call('PEXPIRE', key, text(left)) end
  end
end

local function hold()
  local over = {}
  for _, party in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', text(now), 'LIMIT', 0, TOLD_MAX)) do
    if now - score(KEYS[5], party) > ASKED_WITHIN then over[#over + 1] = party end
  end
  drop(over)
  local asked_at, longest = 0, 0
  if ARGV[27] then asked_at = tonumber(redis.call('ZREVRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2] or '0') end
  for i = 27, #ARGV, 2 do
    asked_at = math.max(now, asked_at + 1)
    local left = tonumber(ARGV[i + 1])
    local before = score(KEYS[4], ARGV[i])
    redis.call('ZADD', KEYS[4], text(math.max(now + left, before)), ARGV[i])
    redis.call('ZADD', KEYS[5], text(asked_at), ARGV[i])
    longest = math.max(longest, left)
  end
  if ARGV[27] then
    keep_for(longest + 60000)
    drop(redis.call('ZRANGE', KEYS[5], 0, -HOLDS_MAX - 1))
  end
end

local function tell_holds(reply)
  local seen = tonumber(ARGV[26])
  if seen > now + 1000 then seen = 0 end -- of a clock that went back (a failover): all of them again
  local changed_since = redis.call('ZRANGEBYSCORE', KEYS[5], '(' .. text(seen), '+inf', 'WITHSCORES', 'LIMIT', 0,
    TOLD_MAX)
  reply[#reply + 1] = changed_since[#changed_since] or text(seen)
  for i = 1, #changed_since, 2 do
    reply[#reply + 1] = changed_since[i]
    reply[#reply + 1] = text(score(KEYS[4], changed_since[i]))
  end
end

local function clean()
  if circuit.state == 'degraded' and now - circuit.troubled >= CLEAN then
    enter('closed')
    circuit.opened = 0
  elseif circuit.state == 'closed' and circuit.opened > 0 and now - circuit.since >= CLEAN then
    set('opened', 0)
  end
end

local function judge()
  local reporting, spans = gather()
  gate(spans)
  if circuit.state == 'ramp' then
    local c = spans[2]
    if c.total >= RAMP_MINIMUM and c.bad > BAD_AFTER_OPEN_MAX * c.total then open() end
    return
  end
  if circuit.state ~= 'closed' and circuit.state ~= 'degraded' then return end
  local must_open, must_degrade = false, false
  for _, s in ipairs(spans) do
    local quorum = 1
    if reporting > 1 then quorum = math.max(2, math.ceil(QUORUM_SHARE * s.speaking)) end
    if s.total >= minimum_to_open and reached(open_at, s) and s.bad_rows >= quorum then must_open = true end
    if s.total >= minimum and reached(degrade_at, s) then must_degrade = true end
  end
  if must_open then
    open()
  elseif must_degrade then
    if circuit.state == 'closed' then enter('degraded') end
    set('troubled', now)
  else
    clean()
  end
end

-- the verbs

local granted = 0
local verb = ARGV[1]

if verb == 'report' then
  local row = {text(now), ARGV[13]}
  for i = 14, 23 do row[#row + 1] = ARGV[i] end
  row[#row + 1] = '0'
  redis.call('HSET', KEYS[2], ARGV[12], table.concat(row, ' '))
  redis.call('PEXPIRE', KEYS[2], 60000)
  if ARGV[25] ~= '0' then
    redis.call('HSET', KEYS[6], ARGV[12], table.concat({text(now), ARGV[13], ARGV[24], ARGV[25]}, ' '))
    redis.call('PEXPIRE', KEYS[6], 60000)
  else
    redis.call('HDEL', KEYS[6], ARGV[12])
  end
  hold()
  advance()
  local since_judged = now - circuit.judged
  -- A clock that went back (a failover) must not put judging off until it has caught up.
  if not forced and (since_judged < 0 or since_judged >= JUDGE_EVERY) then
    set('judged', now)
    judge()
  end
elseif verb == 'take' then
  advance()
  if circuit.state == 'half_open' and circuit.held <= now then
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', text(now)) -- who died holding one holds none
    local lasts = tonumber(ARGV[13])
    local held = redis.call('ZSCORE', KEYS[3], ARGV[12])
    if held or redis.call('ZCARD', KEYS[3]) < PROBES_MAX then
      if not held then redis.call('ZADD', KEYS[3], text(now + lasts), ARGV[12]) end
      redis.call('PEXPIRE', KEYS[3], text(lasts + 60000))
      set('patience', math.max(circuit.patience, now + lasts + PATIENCE))
      granted = 1
    end
  end
elseif verb == 'vote' then
  local held = score(KEYS[3], ARGV[12])
  redis.call('ZREM', KEYS[3], ARGV[12])
  if ARGV[13] ~= '' and held > now and circuit.state == 'half_open' then
    if ARGV[13] == '1' then set('ok', circuit.ok + 1) else set('bad', circuit.bad + 1) end
    circuit.patience = now + PATIENCE
    granted = 1
    if circuit.bad >= BAD_PROBES_LEAST and circuit.bad > BAD_AFTER_OPEN_MAX * (circuit.ok + circuit.bad) then
      open()
    elseif circuit.ok >= PROBES_OK then
      enter('ramp')
    end
  end
elseif verb == 'force' then
  enter(ARGV[12], now + tonumber(ARGV[13]), 0, ARGV[14], ARGV[15])
elseif verb == 'release' then
  if forced then end_of_force() end
end

if changed then
  local fields = {}
  for _, name in ipairs(FIELDS) do
    fields[#fields + 1] = name
    fields[#fields + 1] = text(circuit[name])
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIRE', KEYS[1], text(KEPT + math.max(0, circuit['until'] - now)))
end

local reply = {granted, text(now), redis.call('HLEN', KEYS[2])}
for _, name in ipairs(FIELDS) do reply[#reply + 1] = text(circuit[name]) end
if verb == 'report' then tell_holds(reply) end
return reply
