-- The fixed window, which is one segment, and the segmented sliding window.
--
-- A window opens with the first call and again with the first after its end. The state is the counts of the
-- newest segments, newest first, and when the newest began. Twin of src/algorithm/window.rs; keep names and
-- order alike.
--
-- Value: 'w', version, start, tail, by when a call of the fixed window had arrived (2^53 - 1: not known), segment (us),
-- segments, look, kept, then a count for each segment kept; 'W' where a count is large.

local function window()
  local HEAD = '>BI5I7I7I7I7BBB'
  local window = { tail = 'tail' }

  -- Numbers: n, segment_us, segments, look, kept, band_us, ahead_us; the budget of a reader with the default
  -- margin (us).
  function window.rule(args, i)
    return {
      kind = window, n = args[i] + 0, segment_us = args[i + 1] + 0, segments = args[i + 2] + 0,
      look = args[i + 3] + 0, kept = args[i + 4] + 0, band_us = args[i + 5] + 0, ahead_us = args[i + 6] + 0,
      wide_us = args[i + 7] + 0, most = args[i] + 0, hold = -1,
    }, i + 8
  end

  -- Without counts: nothing was ever counted.
  function window.fresh()
    return { start = 0, tail = 0, arrived = 0, counts = {} }
  end

  local function counts_format(letter, kept)
    return '>' .. string.rep(letter == 87 and 'I7' or 'I4', kept)
  end

  function window.decode(value)
    local letter, version, start, tail, arrived, segment_us, segments, look, kept, next = unpack_from(HEAD, value)
    local counts = {}
    if next <= #value then
      counts = { unpack_from(counts_format(letter, kept), value, next) }
      counts[kept + 1] = nil
    end
    return {
      start = start, tail = tail, arrived = arrived, counts = counts, version = version,
      by_segment_us = segment_us, by_segments = segments, by_look = look, by_kept = kept,
    }
  end

  function window.encode(rule, state, version)
    local counts, letter = state.counts, 119
    for i = 1, #counts do
      if counts[i] > 4294967295 then letter = 87 end
    end
    local head = pack(
      HEAD, letter, version, state.start, state.tail, state.arrived, rule.segment_us, rule.segments, rule.look,
      rule.kept
    )
    if #counts == 0 then return head end
    return head .. pack(counts_format(letter, #counts), unpack(counts))
  end

  function window.writer(state)
    return {
      kind = window, segment_us = state.by_segment_us, segments = state.by_segments, look = state.by_look,
      kept = state.by_kept,
    }
  end

  function window.numbers(state, out, n)
    local counts = state.counts
    out[n + 1], out[n + 2], out[n + 3], out[n + 4] = state.start, state.tail, state.arrived, #counts
    for i = 1, #counts do out[n + 4 + i] = counts[i] end
    return n + 4 + #counts
  end

  function window.of_numbers(_, args, i)
    local counts = {}
    for k = 1, args[i + 3] + 0 do counts[k] = args[i + 3 + k] + 0 end
    return { start = args[i] + 0, tail = args[i + 1] + 0, arrived = args[i + 2] + 0, counts = counts }, i + 4 + #counts
  end

  -- Whether a state of its writer's reads the same here.
  function window.is_same(rule, state)
    return rule.segment_us == state.by_segment_us and rule.segments == state.by_segments
      and rule.kept == state.by_kept
  end

  -- Units in the segments looked at, `shift` segments after the state's newest.
  local function count(rule, state, shift)
    local counts, sum = state.counts, 0
    for i = 1, min(rule.look - shift, #counts) do sum = sum + counts[i] end
    return sum
  end

  local function shift_of(rule, state, at)
    return floor((at - state.start) / rule.segment_us)
  end

  -- How much later than this window the service's may have opened: with the first call that arrived.
  local function late_us(rule, state)
    return min(rule.band_us, less(state.arrived, state.start))
  end

  function window.earliest(rule, state, now, cost)
    if now < state.tail then now = state.tail end
    if #state.counts == 0 then return now end
    if rule.band_us > 0 and now >= state.start + rule.segment_us - rule.band_us then
      return max(now, state.start + rule.segment_us + late_us(rule, state))
    end
    local shift = shift_of(rule, state, now)
    if count(rule, state, shift) + cost <= rule.n then return now end
    while shift < rule.look and count(rule, state, shift) + cost > rule.n do shift = shift + 1 end
    return state.start + shift * rule.segment_us + late_us(rule, state)
  end

  -- A call that was charged at `slot` had arrived by that instant. Whether that says something new.
  function window.arrived(rule, state, slot, units, by)
    local start = state.start
    if units == 0 or #state.counts == 0 or slot < start or slot >= start + rule.segment_us or by < slot then
      return false
    end
    if by - start >= late_us(rule, state) then return false end
    state.arrived = by
    return true
  end

  function window.commit(rule, state, at, cost)
    local counts = state.counts
    local shift = #counts == 0 and rule.look or shift_of(rule, state, at)
    if shift >= rule.look then
      state.start, state.arrived = at, EXACT
      for i = 1, rule.kept do counts[i] = 0 end
    elseif shift > 0 then
      for i = rule.kept, 1, -1 do counts[i] = i > shift and counts[i - shift] or 0 end
      state.start = state.start + shift * rule.segment_us
    end
    state.tail = at
    counts[1] = counts[1] + cost
  end

  -- Only the segment of the slot, while it is kept.
  function window.settle(rule, state, _, slot, charged, used)
    local ago = 0
    if state.start >= slot then ago = ceil((state.start - slot) / rule.segment_us) end
    local count = state.counts[ago + 1]
    if count then state.counts[ago + 1] = min(less(count + used, charged), EXACT) end
  end

  local function spread(rule, state, units)
    local segments = rule.segments
    for i = 0, segments - 1 do
      local share = multiply_divide(i + 1, units, segments) - multiply_divide(i, units, segments)
      state.counts[i + 1] = state.counts[i + 1] + share
    end
  end

  -- N, spread over the window that is open at `at`.
  function window.full(rule, at)
    local state = window.fresh()
    window.commit(rule, state, at, 0)
    spread(rule, state, rule.n)
    return state
  end

  -- A fixed window is opened again and full. Segments keep their counts and their phase, and what they leave of N
  -- is spread over them.
  function window.drained(rule, state, at)
    if rule.segments == 1 then return window.full(rule, at) end
    local drained = {
      start = state.start, tail = state.tail, arrived = state.arrived, counts = { unpack(state.counts) },
    }
    window.commit(rule, drained, at, 0)
    local used = 0
    for i = 1, rule.segments do used = used + drained.counts[i] end
    spread(rule, drained, less(rule.n, used))
    return drained
  end

  -- The service refused a call at `now`. A fixed window that is open is full, and opens again when it would have.
  function window.refused(rule, state, now)
    if state.tail > now then return state end
    if rule.segments > 1 or #state.counts == 0 or now >= state.start + rule.segment_us then
      return window.drained(rule, state, now)
    end
    state.tail, state.counts[1] = now, max(state.counts[1], rule.n)
    return state
  end

  function window.fresh_at(rule, state)
    if #state.counts == 0 then return 0 end
    return max(state.tail, state.start + rule.wide_us)
  end

  function window.used(rule, state, now)
    if #state.counts == 0 then return 0 end
    return count(rule, state, shift_of(rule, state, max(now, state.tail)))
  end

  function window.clamp(rule, state)
    for i = 1, #state.counts do state.counts[i] = min(state.counts[i], rule.n) end
  end

  function window.equal(a, b)
    if a.start ~= b.start or a.tail ~= b.tail or a.arrived ~= b.arrived or #a.counts ~= #b.counts then
      return false
    end
    for i = 1, #a.counts do
      if a.counts[i] ~= b.counts[i] then return false end
    end
    return true
  end

  return window
end
