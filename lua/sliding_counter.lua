-- The weighted sliding counter: this window's count, and the part of the last window's that a window ending now
-- would still cover.
--
-- Weights are exact: they are compared as products, in a grain of time coarse enough to stay inside 2^53. Twin
-- of src/algorithm/sliding_counter.rs; keep names and order alike.
--
-- Value: 'c', version, start, tail (us), count, last (units), grain (us), grains of a window.

local function sliding_counter()
  local FORM = '>BI5I7I7I7I7I7I7'
  local counter = { tail = 'tail' }

  -- Numbers: n, cap (units), grain_us, grains, ahead_us.
  function counter.rule(args, i)
    return {
      kind = counter, n = args[i] + 0, cap = args[i + 1] + 0, grain_us = args[i + 2] + 0,
      grains = args[i + 3] + 0, ahead_us = args[i + 4] + 0, most = args[i] + 0, hold = -1,
    }, i + 5
  end

  function counter.fresh()
    return { start = 0, tail = 0, count = 0, last = 0 }
  end

  function counter.decode(value)
    local _, version, start, tail, count, last, grain_us, grains = unpack_from(FORM, value)
    return {
      start = start, tail = tail, count = count, last = last, version = version,
      by_grain_us = grain_us, by_grains = grains,
    }
  end

  function counter.encode(rule, state, version)
    return pack(
      FORM, 99, version, state.start, state.tail, state.count, state.last, rule.grain_us, rule.grains
    )
  end

  function counter.writer(state)
    return { kind = counter, grain_us = state.by_grain_us, grains = state.by_grains }
  end

  function counter.numbers(state, out, n)
    out[n + 1], out[n + 2], out[n + 3], out[n + 4] = state.start, state.tail, state.count, state.last
    return n + 4
  end

  function counter.of_numbers(_, args, i)
    return {
      start = args[i] + 0, tail = args[i + 1] + 0, count = args[i + 2] + 0, last = args[i + 3] + 0,
    }, i + 4
  end

  local function window_us(rule)
    return rule.grains * rule.grain_us
  end

  -- The most that the last window can weigh: above the limit, after a correction, and still exact.
  local function heaviest(rule)
    return floor(EXACT / rule.grains)
  end

  -- Start, count and last as a call at `at`, not before the tail, finds them.
  local function rolled(rule, state, at)
    local unused = state.count == 0 and state.last == 0
    local gone = floor((at - state.start) / window_us(rule))
    if gone == 0 and not unused then return state.start, state.count, state.last end
    if gone == 1 and state.count > 0 then return state.start + window_us(rule), 0, state.count end
    return at, 0, 0
  end

  function counter.earliest(rule, state, now, cost)
    if now < state.tail then now = state.tail end
    local start, count, last = rolled(rule, state, now)
    local room = less(rule.cap, cost)
    -- In this window the rest of the last one weighs; in the next window this one does.
    if count <= room then
      room = room - count
    else
      start, last = start + window_us(rule), count
    end
    if last == 0 then return now end
    last = min(last, heaviest(rule))
    local from = rule.grains - min(floor(room * rule.grains / last), rule.grains)
    return max(now, start + from * rule.grain_us)
  end

  function counter.commit(rule, state, at, cost)
    state.start, state.count, state.last = rolled(rule, state, at)
    state.tail = at
    state.count = state.count + cost
  end

  -- Only the window of the slot, while it is this one.
  function counter.settle(_, state, _, slot, charged, used)
    if slot >= state.start then
      state.count = min(less(state.count + used, charged), QUARTER)
    end
  end

  -- Windows keep their phase. What they leave of N is added as an even stream would have used it: to the last
  -- window, up to N there, and the rest to this one.
  function counter.drained(rule, state, at)
    local start, count, last = rolled(rule, state, at)
    local left = rule.grains - floor((at - start) / rule.grain_us)
    local rest = less(rule.n, count)
    last = max(min(ceil(rest * rule.grains / left), rule.n), last)
    local weight = floor(min(last, heaviest(rule)) * left / rule.grains)
    count = max(count, less(rule.n, weight))
    return { start = start, tail = at, count = count, last = last }
  end

  function counter.full(rule, at)
    return { start = at, tail = at, count = 0, last = rule.n }
  end

  function counter.fresh_at(rule, state)
    if state.count == 0 and state.last == 0 then return state.tail end
    return max(state.tail, state.start + 2 * window_us(rule))
  end

  function counter.used(rule, state, now)
    if now < state.tail then now = state.tail end
    local start, count, last = rolled(rule, state, now)
    local left = rule.grains - floor((now - start) / rule.grain_us)
    return count + ceil(min(last, heaviest(rule)) * left / rule.grains)
  end

  function counter.clamp(rule, state)
    state.count, state.last = min(state.count, rule.n), min(state.last, rule.n)
  end

  function counter.equal(a, b)
    return a.start == b.start and a.tail == b.tail and a.count == b.count and a.last == b.last
  end

  return counter
end
