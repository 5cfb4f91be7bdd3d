-- Retry budgets of one provider and group: counts, then all scopes or none. Milliseconds; cost units; parts of one.
-- The same arithmetic as core/budget.py, in the same order of operations. Every key has the provider as its hash tag.
--
-- KEYS       one string a scope, its eleven numbers as text; the first is the provider's
-- ARGV[1]    now_ms; empty: this server's TIME. Only tests give it
-- ARGV[2]    cost of the retry asked for; 0: only count      ARGV[3] share of the asker's priority
-- ARGV[4]    what it costs beyond the floors if all its scopes trust it
-- ARGV[5..]  one text a scope: kind (own, class, intent), window_ms, floor, ratio, ceiling, least, firsts, spent,
--            helped, vain, doubted, failed; the last six are what happened in it since it was last told
-- returns    {granted 0|1, index of the limiting scope from 0 or -1, wait_ms, what it costs, left of each scope as text}

local USELESS, SPAN, PRIOR, LENT = 0.15, 0.2, 3.0, 5.0
local HALF_LIFE_MS, KNOWN_LEAST, LAST_HALF_LIFE_MS = 500, 20.0, 10000
local RISE, RISE_MS, RISES_MAX, RISE_FROM = 2.0, 500, 20, 0.01
local SHAKEN_BY, SHAKEN_FLOOR, SHAKEN_FLOOR_LEAST = 5, 0.04, 1.0

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local cost, share, cost_least = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function elapsed(tally, window)
  return math.min(math.max((now - tally.bucket * window) / window, 0), 1)
end

local function fade_of(tally)
  local later = math.max(0, now - tally.judged_ms)
  local kept = math.min(1.0, KNOWN_LEAST / math.max(tally.helped + tally.vain, 1.0))
  return math.max(0.5 ^ (later / HALF_LIFE_MS), kept * 0.5 ^ (later / LAST_HALF_LIFE_MS))
end

local function trust_of(tally, line)
  if line.ceiling <= line.ratio then return 0 end
  return math.min(math.max((tally.ratio - line.ratio) / (line.ceiling - line.ratio), 0), 1)
end

-- The provider's own scope borrows from none; the others from it, up to a few attempts.
local function target(tally, provider, line)
  if line.ceiling <= 0 then return 0 end
  local prior = USELESS + SPAN * line.ratio / line.ceiling
  local helped, known = tally.helped + PRIOR * prior, tally.helped + tally.vain + PRIOR
  if provider then
    local lent = LENT / math.max(provider.helped + provider.vain, LENT)
    helped, known = helped + lent * provider.helped, known + lent * (provider.helped + provider.vain)
  end
  return math.min(math.max(line.ceiling * (helped / known - USELESS) / SPAN, line.least), line.ceiling)
end

local function adapt(tally, provider, line)
  local wanted, ratio, since = target(tally, provider, line), tally.ratio, tally.ratio_ms
  if wanted <= ratio or now < since then
    tally.ratio, tally.ratio_ms = math.min(ratio, wanted), now
    return
  end
  local rises = math.floor((now - since) / RISE_MS)
  for _ = 1, math.min(rises, RISES_MAX) do
    ratio = math.max(ratio, RISE_FROM) * RISE
  end
  tally.ratio, tally.ratio_ms = math.min(ratio, wanted), since + rises * RISE_MS
end

local WORD = '([^ ]+)'
local ELEVEN = '^' .. string.rep(WORD .. ' ', 10) .. WORD .. '$'
local TWELVE = '^' .. string.rep(WORD .. ' ', 11) .. WORD .. '$'
local FORMAT = string.rep('%.17g ', 10) .. '%.17g'

local function parse(text)
  if not text then return nil end
  local bucket, firsts, firsts_before, spent, spent_before, helped, vain, judged_ms, ratio, ratio_ms, in_a_row =
    string.match(text, ELEVEN)
  if not bucket then return nil end
  return {bucket = tonumber(bucket), firsts = tonumber(firsts), firsts_before = tonumber(firsts_before),
    spent = tonumber(spent), spent_before = tonumber(spent_before), helped = tonumber(helped), vain = tonumber(vain),
    judged_ms = tonumber(judged_ms), ratio = tonumber(ratio), ratio_ms = tonumber(ratio_ms),
    in_a_row = tonumber(in_a_row)}
end

local function text_of(tally)
  return string.format(FORMAT, tally.bucket, tally.firsts, tally.firsts_before, tally.spent, tally.spent_before,
    tally.helped, tally.vain, tally.judged_ms, tally.ratio, tally.ratio_ms, tally.in_a_row)
end

local function fresh(bucket, ratio)
  return {bucket = bucket, firsts = 0, firsts_before = 0, spent = 0, spent_before = 0, helped = 0, vain = 0,
    judged_ms = now, ratio = ratio, ratio_ms = now, in_a_row = 0}
end

local function counted_intent(tally, line)
  if not tally or now >= tally.bucket then
    tally = fresh(now + line.window, 0)
  end
  tally.spent = math.max(0, tally.spent + line.add_spent)
  return tally
end

local function counted(tally, provider, line)
  local bucket = math.floor(now / line.window)
  if not tally or bucket > tally.bucket + 1 then
    tally = fresh(bucket, line.ratio)
  elseif bucket == tally.bucket + 1 then
    tally.bucket = bucket
    tally.firsts, tally.firsts_before = 0, tally.firsts
    tally.spent, tally.spent_before = 0, tally.spent
  end
  local spent = tally.spent + line.add_spent + math.floor(line.add_doubted * (1 - trust_of(tally, line)) + 0.5)
  if spent < 0 then
    tally.spent_before = math.max(0, tally.spent_before + spent)
    spent = 0
  end
  tally.firsts, tally.spent = tally.firsts + line.add_firsts, spent
  local fade = fade_of(tally)
  tally.helped, tally.vain = tally.helped * fade + line.add_helped, tally.vain * fade + line.add_vain
  tally.judged_ms = now
  tally.in_a_row = line.add_helped > 0 and 0 or tally.in_a_row + line.add_failed
  adapt(tally, provider, line)
  return tally
end

local function wait_of(tally, window, limit, late)
  if limit < 1 then return 2 * window end
  local room, wait = 0.999, 0
  if limit > cost then room = limit - cost end
  if tally.spent <= room and tally.spent_before > 0 then
    wait = (late - (room - tally.spent) / tally.spent_before) * window
  elseif tally.spent > room then
    wait = (late + 1 - room / tally.spent) * window
  end
  return math.max(1, math.ceil(wait))
end

-- Count what happened.
local kept = redis.call('MGET', unpack(KEYS))
local lines, tallies = {}, {}
for index = 1, #KEYS do
  local kind, window, floor, ratio, ceiling, least, firsts, spent, helped, vain, doubted, failed =
    string.match(ARGV[4 + index], TWELVE)
  local line = {kind = kind, window = tonumber(window), floor = tonumber(floor), ratio = tonumber(ratio),
    ceiling = tonumber(ceiling), least = tonumber(least), add_firsts = tonumber(firsts), add_spent = tonumber(spent),
    add_helped = tonumber(helped), add_vain = tonumber(vain), add_doubted = tonumber(doubted),
    add_failed = tonumber(failed)}
  lines[index] = line
  local tally = parse(kept[index])
  if line.kind == 'intent' then
    tallies[index] = counted_intent(tally, line)
  else
    tallies[index] = counted(tally, tallies[1], line)
  end
end

-- While nothing at the provider helps, nothing is trusted. What they have learnt is written down below.
local learnt, shaken = {}, tallies[1].in_a_row >= SHAKEN_BY
for index, line in ipairs(lines) do
  local tally = tallies[index]
  learnt[index] = tally.ratio
  if shaken and line.kind ~= 'intent' then tally.ratio = math.min(tally.ratio, line.least) end
end

-- What each scope has, and what of it is spent.
local rooms, fits_floors = {}, not shaken
for index, line in ipairs(lines) do
  local tally = tallies[index]
  if line.kind == 'intent' then
    rooms[index] = {most = line.floor, spent = tally.spent}
  else
    local firsts_of, floor = tally, line.floor
    if line.kind == 'class' then firsts_of = tallies[1] end
    local late = 1 - elapsed(tally, line.window)
    local late_of_firsts = 1 - elapsed(firsts_of, line.window)
    local firsts = firsts_of.firsts + firsts_of.firsts_before * late_of_firsts
    local spent = tally.spent + tally.spent_before * late
    if shaken then floor = math.min(floor, math.max(floor * SHAKEN_FLOOR, SHAKEN_FLOOR_LEAST)) end
    if spent + 1 > share * floor then fits_floors = false end
    rooms[index] = {most = math.max(floor, tally.ratio * firsts), spent = spent, late = late}
  end
end

-- A retry that fits into all floors costs 1. Beyond them it costs less if all of its scopes trust it.
if cost > 1 and fits_floors then
  cost = 1
elseif cost > cost_least then
  local trust = 1
  for index, line in ipairs(lines) do
    if line.kind ~= 'intent' then trust = math.min(trust, trust_of(tallies[index], line)) end
  end
  cost = math.floor(cost - (cost - cost_least) * trust + 0.5)
end

-- Weigh the retry in every scope.
local limiting, wait, left = -1, 0, {}
for index, line in ipairs(lines) do
  local tally, room = tallies[index], rooms[index]
  local refused, until_ms
  left[index] = room.most - room.spent
  if line.kind == 'intent' then
    refused = room.spent + 1 > room.most
    until_ms = math.max(tally.bucket - now, 1)
  else
    local limit = share * room.most
    refused = room.spent + cost > limit and not (room.spent < 1 and limit >= 1)
    until_ms = wait_of(tally, line.window, limit, room.late)
  end
  if cost > 0 and refused and until_ms > wait then limiting, wait = index - 1, until_ms end
end

-- Debit all or none, and write down what was counted.
local granted = cost > 0 and limiting < 0
local reply = {granted and 1 or 0, limiting, wait, cost}
for index, line in ipairs(lines) do
  local tally = tallies[index]
  tally.ratio = learnt[index]
  if granted then
    local debit = cost
    if line.kind == 'intent' then debit = 1 end
    tally.spent, left[index] = tally.spent + debit, left[index] - debit
  end
  local key = KEYS[index]
  if line.kind ~= 'intent' then
    redis.call('SET', key, text_of(tally), 'PX', 3 * line.window)
  elseif tally.spent > 0 then
    redis.call('SET', key, text_of(tally), 'PX', math.max(1, tally.bucket - now))
  elseif kept[index] then
    redis.call('DEL', key)
  end
  reply[4 + index] = string.format('%.17g', left[index])
end

return reply
