-- A key's last pause: `Pause` of src/store/entry.rs, as the whole fleet sees it.
--
-- It outlives its end by one budget, for until then the drain can be told. Within one generation its end only ever
-- moves later; ending it begins the next one, so that no worker's memory brings it back.
--
-- Value: 'p', ends, probe_at, probe_every, probed, drained (us), generation. An instant of 2^53 - 1 never comes.

local PAUSE = '>BI7I7I7I7I7I7'

local function pause_of(value)
  if not value then
    return { ends = 0, probe_at = 0, probe_every = 0, probed = 0, drained = 0, generation = 0 }
  end
  local _, ends, probe_at, probe_every, probed, drained, generation = unpack_from(PAUSE, value)
  return {
    ends = ends, probe_at = probe_at, probe_every = probe_every, probed = probed, drained = drained,
    generation = generation,
  }
end

-- The last instant, up to `now`, at which the budgets count as used up.
local function drained_by(pause, now, budget_us)
  if now >= max(pause.ends, pause.drained) + budget_us then return 0 end
  if pause.ends <= now then return max(pause.drained, pause.ends) end
  return pause.drained
end

-- What a worker saw last, where it is later than what is found: that was lost.
local function heal_pause(pause, args, i, now, budget_us)
  local ends, drained, generation = args[i] + 0, args[i + 4] + 0, args[i + 5] + 0
  if now >= max(ends, drained) + budget_us or generation < pause.generation then return false end
  local lost = false
  if generation > pause.generation or ends > pause.ends then
    pause.ends, pause.probe_at, pause.probe_every = ends, args[i + 1] + 0, args[i + 2] + 0
    pause.probed, pause.generation, lost = args[i + 3] + 0, generation, true
  end
  if drained > pause.drained then pause.drained, lost = drained, true end
  return lost
end

local function pause_value(pause)
  return pack(
    PAUSE, 112, pause.ends, pause.probe_at, pause.probe_every, pause.probed, pause.drained, pause.generation
  )
end

-- Writes a pause; it is kept for `at_least_ms`, and until it can be told no more.
local function save_pause(key, pause, now, budget_us, at_least_ms)
  local left_us = max(pause.ends, pause.drained) + budget_us - now
  redis.call('SET', key, pause_value(pause), 'PX', text(max(1, ceil(left_us / 1000), at_least_ms)))
end
