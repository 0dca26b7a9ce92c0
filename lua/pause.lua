-- Changes a key's pause, and tells everyone.
--
-- KEYS  1 the key's pause
--       then each limit that time frees
-- ARGV  1 now (us; 0: Redis's clock)
--       2 channel of everyone
--       3 budget of the key (us)
--       4 what: 'pause', 'drain', 'throttled' (a drain that everyone is told of), 'resume' or 'answered'
--       5 pause: for how long from now (us); throttled, answered: how long ago the call was sent (us); else 0
--       6 pause: from one probe to the next (us; 2^53 - 1: none, an operator's pause); throttled: the wait that the
--         service asks for (us); else 0
--       7 session of who says so
--       then for each limit its kind (first byte of its value) and numbers; how many calls were refused, and of each
--         its slot (us) and what it was charged (units)
-- Gives 1 if anything was changed

-- A resume is remembered for as long as any worker may remember the pause that it ended.
local REMEMBERED_US = 3600000000

local now, late_ms = clock(ARGV[1])
local channel, budget_us, what, us, every_us = ARGV[2], ARGV[3] + 0, ARGV[4], ARGV[5] + 0, ARGV[6] + 0
local session = ARGV[7]
local pause = pause_of(redis.call('GET', KEYS[1]))
if now >= max(pause.ends, pause.drained) + budget_us then
  pause.ends, pause.probe_at, pause.probe_every, pause.probed, pause.drained = 0, 0, 0, 0, 0
end
local holds = now < pause.ends

-- For how long everyone holds the key: then one call may probe, and Redis says which.
local function tell()
  redis.call('PUBLISH', channel, string.format(
    'p %.0f %.0f %s', less(min(pause.ends, pause.probe_at), now), pause.generation, KEYS[1]
  ))
end

-- How a call was answered: what the next answer to anyone means depends on it.
local function tell_answer(letter, ago_us)
  redis.call('PUBLISH', channel, string.format('%s %.0f %s %s', letter, ago_us, session, KEYS[1]))
end

-- States that were last booked before now are read as drained now; only one that was booked at this very instant
-- is written, and a window or a log of which the service refused a call.
local function drain()
  pause.drained = max(pause.drained, now)
  local arg = 8
  for k = 2, #KEYS do
    local kind = kind_of(string.byte(ARGV[arg]))
    local limit = { kind = kind, key = KEYS[k] }
    limit.rule, arg = kind.rule(ARGV, arg + 1)
    find(limit, redis.call('MGET', limit.key)[1], now)
    local declined = arg + 1
    arg = declined + 2 * ARGV[arg]
    -- On Redis's clock their slots say when they were sent.
    local sent
    for i = declined, arg - 1, 2 do
      local slot, units = ARGV[i] + 0, ARGV[i + 1] + 0
      if kind.declined and kind.declined(limit.rule, limit.state, now, slot, units) then limit.dirty = true end
      if units > 0 then sent = max(sent or 0, slot) end
    end
    if what == 'throttled' and kind.refused then
      limit.state, limit.dirty = kind.refused(limit.rule, limit.state, now, sent or less(now, us), every_us), true
    elseif limit.state[kind.tail] == now then
      limit.state, limit.dirty = kind.drained(limit.rule, limit.state, now), true
    end
    if limit.dirty then save(limit, now, late_ms) end
  end
end

if what == 'pause' then
  local ends = min(now + us, EXACT)
  -- Until then an operator holds the key, and nothing probes it.
  local held = 0
  if pause.probe_every == EXACT and holds then held = pause.ends end
  if ends > pause.ends then
    pause.drained = drained_by(pause, now, budget_us)
    pause.ends, pause.probe_at, pause.probe_every = ends, max(min(now + every_us, EXACT), held), every_us
    pause.probed = 0
  elseif every_us == EXACT and ends > pause.probe_at then
    pause.probe_at = ends
  else
    return 0
  end
  -- It is over already: what was booked at this very instant would not tell.
  if us == 0 then drain() end
  save_pause(KEYS[1], pause, now, budget_us, late_ms)
  tell()
  return 1
end

if what == 'drain' or what == 'throttled' then
  drain()
  save_pause(KEYS[1], pause, now, budget_us, late_ms)
  if what == 'throttled' then tell_answer('t', us) end
  return 1
end
if what == 'answered' then tell_answer('a', us) end

local probed = what == 'resume' or (pause.probed > 0 and now - us >= pause.probed)
local ended = holds and probed
if not ended and what ~= 'resume' then return 0 end
if ended then
  pause.ends = now
  drain()
end
pause.generation = max(pause.generation + 1, now)
local keep_ms = max(redis.call('PTTL', KEYS[1]), ceil((budget_us + REMEMBERED_US) / 1000) + late_ms)
save_pause(KEYS[1], pause, now, budget_us, keep_ms)
tell()
return 1
