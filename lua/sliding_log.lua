-- The sliding log: the time of each admission, so that no period ever holds more than the limit.
--
-- Admissions at one instant are one entry. Entries carry running totals, so that a decision is a binary search
-- over LINDEX and not a walk. What has left the window is dropped when something is booked, in one LTRIM, which
-- frees whole nodes of the list. Twin of src/algorithm/sliding_log.rs; keep names and order alike.
--
-- Value: a list, oldest first. The newest element is the head: 'l', version, at (us), total (units), base (units
-- before the first), for how long an entry counts (us); what the last drain left of the limit: units, when it was, the
-- instant at which their window ends, how long that is (us), how long before its beginning the first of them lies (us) and the
-- instant up to which it yields to entries; and the widest margin by which entries were moved (us). The others are at
-- modulo 2^40 and total modulo 2^24, read as the last ones before the head's; under a head 'L' they are whole.

local function sliding_log()
  local HEAD, NARROW, WIDE = '>BI5I7I7I7I7I7I7I7I7I7I7I7', '>I5I3', '>I7I7'
  local TIMES, TOTALS = 1099511627776, 16777216
  -- Elements of one RPUSH: Lua's stack holds about eight thousand.
  local CHUNK = 4000
  -- Instants in a margin to which calls are moved: those of one burst meet, however many answers tell of them.
  local GRAINS = 32
  -- The longest wait after which a refused call comes again while others go on.
  local SOFT_WAIT_US = 1000000
  -- What is missing after a refusal returns over such a part of a window, but for the first of it.
  local RETURNS = 32
  -- The first of it returns sooner by so many times as long as the refused call took: by as much as the others take at
  -- least, and half of a window at most.
  local PROBES = 2
  -- What lies no further apart than such a part of a window is of one burst.
  local BURST = 8
  -- Among so many of the newest entries is one looked for, in memory.
  local NEWEST = 256
  local log = { tail = 'tail', is_list = true }

  -- Numbers: n, window, margin, keep, ahead (us); 1 where times or totals are too large for narrow elements.
  function log.rule(args, i)
    return {
      kind = log, n = args[i] + 0, window_us = args[i + 1] + 0, margin_us = args[i + 2] + 0,
      keep_us = args[i + 3] + 0, ahead_us = args[i + 4] + 0, wide = args[i + 5] + 0 == 1,
      most = args[i] + 0, hold = -1,
    }, i + 6
  end

  -- `ats` and `totals` are the newest entries, from `first` on; `old` elements of the list lie before them, of which
  -- `drop` are dropped and `popped` were taken back. `spread` units count as used evenly over a window of
  -- `spread_us` that ends at `spread_at`, since a drain at `spread_since`; the first of those that were refused lies
  -- `probe_us` before that, and shows how the others would do; it leaves after what is booked up to `yields_to`.
  -- `moved_us` is the widest margin by which entries were moved to when their calls had arrived; every reader adds it.
  local function state_of(key, base)
    return {
      key = key, old = 0, drop = 0, popped = 0, base = base, ats = {}, totals = {}, first = 1, tail = 0,
      rewrite = true, spread = 0, spread_since = 0, spread_at = 0, spread_us = 0, probe_us = 0,
      yields_to = 0, moved_us = 0,
    }
  end

  function log.fresh(key)
    return state_of(key, 0)
  end

  function log.decode(head, key)
    local letter, version, at, total, base, by_counts_us, spread, since, spread_at, spread_us, probe_us, yields_to,
      moved_us = unpack_from(HEAD, head)
    local state = state_of(key, base)
    state.version, state.by_counts_us = version, by_counts_us
    state.tail, state.spread, state.spread_since = max(at, since), spread, since
    state.spread_at, state.spread_us, state.probe_us, state.yields_to = spread_at, spread_us, probe_us, yields_to
    state.moved_us = moved_us
    -- Or nothing was admitted, or all of it taken back.
    if at > 0 then
      state.old, state.ats, state.totals = redis.call('LLEN', key) - 1, { at }, { total }
      state.rewrite, state.wide, state.at, state.total = false, letter == 76, at, total
    end
    return state
  end

  function log.writer(state)
    return { kind = log, counts_us = state.by_counts_us }
  end

  local function element(state, value)
    if state.wide then return unpack_from(WIDE, value) end
    local at, total = unpack_from(NARROW, value)
    return state.at - (state.at - at) % TIMES, state.total - (state.total - total) % TOTALS
  end

  local function size(state)
    return state.old - state.drop + #state.ats - state.first + 1
  end

  -- The entry at `index`, from 0: its instant and its total.
  local function entry(state, index)
    local kept = state.old - state.drop
    if index >= kept then
      local i = state.first + index - kept
      return state.ats[i], state.totals[i]
    end
    return element(state, redis.call('LINDEX', state.key, text(state.drop + index)))
  end

  local function total_of(state)
    return state.totals[#state.totals] or state.base
  end

  -- Units admitted before the entry at `index`.
  local function total_before(state, index)
    if index == 0 then return state.base end
    local _, total = entry(state, index - 1)
    return total
  end

  -- From an entry until it no longer counts.
  local function counts_us(rule, state)
    return rule.counts_us or rule.window_us + max(rule.margin_us, state.moved_us)
  end

  -- How long an entry is kept that others of wider margins may have moved.
  local function kept_us(rule, state)
    return max(rule.keep_us, counts_us(rule, state))
  end

  -- All entries, in memory.
  local function gather(state)
    local ats, totals = {}, {}
    if state.old > state.drop then
      local values = redis.call('LRANGE', state.key, text(state.drop), text(state.old - 1))
      for i = 1, #values do ats[i], totals[i] = element(state, values[i]) end
    end
    for i = state.first, #state.ats do
      ats[#ats + 1], totals[#totals + 1] = state.ats[i], state.totals[i]
    end
    state.ats, state.totals = ats, totals
    state.old, state.drop, state.popped, state.first, state.rewrite = 0, 0, 0, 1, true
  end

  -- Takes the `count` newest entries into memory.
  local function recall(state, count)
    local missing = count - (#state.ats - state.first + 1)
    if missing <= 0 then return end
    local values = redis.call('LRANGE', state.key, text(state.old - missing), text(state.old - 1))
    local ats, totals = {}, {}
    for i = 1, missing do ats[i], totals[i] = element(state, values[i]) end
    for i = state.first, #state.ats do
      ats[#ats + 1], totals[#totals + 1] = state.ats[i], state.totals[i]
    end
    state.ats, state.totals, state.first = ats, totals, 1
    state.old, state.popped = state.old - missing, state.popped + missing
  end

  -- How long all of the spread takes to return.
  local function returns_us(state)
    return state.spread_us + state.probe_us
  end

  local function in_window(state)
    if state.probe_us > 0 then return less(state.spread, 1) end
    return state.spread
  end

  -- How many units of the spread lie in the last `age_us` before its end.
  local function spread_newer(state, age_us)
    if age_us <= 0 or state.spread == 0 then return 0 end
    if age_us > returns_us(state) then return state.spread end
    if age_us >= state.spread_us then return in_window(state) end
    return (multiply_divide_up(in_window(state), age_us, state.spread_us))
  end

  -- How long before its end the unit of the spread lies that so many are newer than.
  local function spread_age_us(state, newer)
    if newer == in_window(state) then return returns_us(state) end
    return (multiply_divide(newer, state.spread_us, in_window(state)))
  end

  -- Units up to and with the entry at `index`, and those of the spread that lie there or before.
  local function total_with(state, index)
    local at, total = entry(state, index)
    if state.spread == 0 then return total end
    return total + state.spread - spread_newer(state, state.spread_at - at)
  end

  -- Once no entry is kept, none counts from another instant than its own.
  local function forget_moved(rule, state, now)
    local newest = state.ats[#state.ats]
    if not newest or newest + kept_us(rule, state) <= now then state.moved_us = 0 end
  end

  -- The first entry up to which there are `leave` units or more; the one after all where there is none. Calls of one
  -- cost are found at the second look.
  local function first_with(state, leave)
    local low, high = 0, size(state) - 1
    local look = ceil((leave - state.base) * (high + 1) / (total_of(state) + state.spread - state.base)) - 1
    if state.spread > 0 then high = high + 1 end
    look = max(0, min(look, high - 1))
    while low < high do
      if total_with(state, look) >= leave then
        high = look
        if high > low then
          if total_with(state, high - 1) < leave then return high end
          high = high - 1
        end
      else
        low = look + 1
      end
      look = floor((low + high) / 2)
    end
    return high
  end

  -- How many entries lie at `until_us` or before.
  local function passed(state, until_us)
    local low, high = 0, size(state)
    if high == 0 or state.tail <= until_us then return high end
    state.oldest = state.oldest or entry(state, 0)
    if state.oldest > until_us then return 0 end
    low = 1
    while low < high do
      local look = floor((low + high) / 2)
      if entry(state, look) <= until_us then low = look + 1 else high = look end
    end
    return low
  end

  -- Which of the newest entries lies at an instant, in memory, and its units.
  local function find_entry(state, at)
    local before = passed(state, at - 1)
    local count = size(state) - before
    if count == 0 or count > NEWEST then return nil end
    recall(state, count)
    local index = #state.ats - count + 1
    if state.ats[index] ~= at then return nil end
    return index, state.totals[index] - total_before(state, before)
  end

  local function push(state, at, units)
    local total = total_of(state) + units
    local newest = #state.ats
    if newest >= state.first and state.ats[newest] == at then
      state.totals[newest] = total
    else
      state.ats[newest + 1], state.totals[newest + 1], state.tail = at, total, at
    end
  end

  -- `used` units at `tail`: as much as a worker remembers of a log.
  function log.of_numbers(_, args, i, key)
    local state = state_of(key, 0)
    push(state, args[i + 1] + 0, args[i] + 0)
    return state, i + 2
  end

  function log.earliest(rule, state, now, cost)
    if now < state.tail then now = state.tail end
    -- At most n - cost units may stay: all before that point have to leave.
    local total = total_of(state) + state.spread
    local leave = min(less(total + cost, rule.n), total)
    if leave <= state.base then return now end
    local last, at = first_with(state, leave), EXACT
    if last < size(state) then at = entry(state, last) end
    if state.spread > 0 then
      -- Or a unit of the spread that lies before that entry.
      local newer = state.spread - (leave - total_before(state, last))
      if newer >= 0 then at = min(at, state.spread_at - spread_age_us(state, newer)) end
    end
    return max(now, at + counts_us(rule, state))
  end

  -- Drops what nobody counts any more.
  local function forget(rule, state, at)
    local keep_us = kept_us(rule, state)
    local gone = passed(state, at - keep_us)
    if gone > 0 then
      state.base = total_before(state, gone)
      local old = min(gone, state.old - state.drop)
      state.drop, state.first, state.oldest = state.drop + old, state.first + gone - old, nil
      if state.first > #state.ats then state.ats, state.totals, state.first = {}, {}, 1 end
    end
    if state.base > QUARTER then
      gather(state)
      for i = 1, #state.totals do state.totals[i] = state.totals[i] - state.base end
      state.base = 0
    end
    if state.spread_at + keep_us <= at then
      state.spread, state.spread_since, state.spread_at, state.spread_us = 0, 0, 0, 0
      state.probe_us, state.yields_to = 0, 0
    end
    forget_moved(rule, state, at)
  end

  function log.commit(rule, state, at, cost)
    forget(rule, state, at)
    push(state, at, cost)
    if at <= state.yields_to then
      -- Once it is known when it arrived it leaves sooner than with its margin: as if its call took as long as the probe
      -- waits.
      local margin_us = counts_us(rule, state) - rule.window_us
      local leaves = less(at + min(margin_us, state.probe_us), margin_us)
      state.spread_at = max(state.spread_at, leaves + returns_us(state))
    end
  end

  -- The head, for others to read the log by.
  function log.numbers(state, out, n, rule, now)
    out[n + 1], out[n + 2] = log.used(rule, state, now), state.tail
    return n + 2
  end

  -- Units that were charged at `slot` are not, after all.
  function log.take_back(state, slot, cost)
    local at, there = find_entry(state, slot)
    if not at or cost == 0 or there < cost then return false end
    local ats, totals = state.ats, state.totals
    for i = at, #totals do totals[i] = totals[i] - cost end
    if there == cost then
      table.remove(ats, at)
      table.remove(totals, at)
      if size(state) > 0 then recall(state, 1) end
      state.tail = max(state.ats[#state.ats] or 0, state.spread_since)
    end
    state.oldest = nil
    return true
  end

  -- Units that were charged at `slot` had arrived by that instant: they are moved to where, with the margin, they count
  -- from then on. Whether that says something new.
  function log.arrived(rule, state, slot, units, by)
    local margin_us = max(rule.margin_us, state.moved_us)
    local grain_us = max(floor(margin_us / GRAINS), 1)
    local to = ceil(less(by, margin_us) / grain_us) * grain_us
    if to >= slot or slot > by or slot + kept_us(rule, state) <= state.tail then return false end
    local first = passed(state, to - 1)
    local count = size(state) - first
    if count == 0 or count > NEWEST then return false end
    recall(state, count)
    local from, there = find_entry(state, slot)
    if not from then return false end
    local ats, totals = state.ats, state.totals
    local oldest, before = #ats - count + 1, total_before(state, first)
    units = min(units, there)
    if units == 0 then return false end
    -- The newest stays, for nothing is booked before it.
    if units == there and from < #ats then
      table.remove(ats, from)
      table.remove(totals, from)
    end
    for i = oldest, from - 1 do totals[i] = totals[i] + units end
    if ats[oldest] ~= to then
      table.insert(ats, oldest, to)
      table.insert(totals, oldest, before + units)
    end
    state.moved_us, state.oldest = margin_us, nil
    return true
  end

  function log.settle(rule, state, now, slot, charged, used)
    if used > charged then
      -- As many as the limit fill it; more could not be told from them.
      log.commit(rule, state, max(now, state.tail), min(used - charged, rule.n))
    elseif used < charged then
      return log.take_back(state, slot, charged - used)
    end
    return used ~= charged
  end

  -- Units of the spread that count at `now`, and as long as any does, how many there were before they began to return.
  local function missing_of(rule, state, now)
    local missing = spread_newer(state, state.spread_at + counts_us(rule, state) - now)
    return missing, missing > 0 and state.spread or 0
  end

  -- Units of the entries up to `until_us` that count at `at`.
  local function counted(rule, state, until_us, at)
    local gone = passed(state, at - counts_us(rule, state))
    return less(total_before(state, passed(state, until_us)), total_before(state, gone))
  end

  -- Units of the entries that count at `now`.
  local function entered(rule, state, now)
    return counted(rule, state, EXACT, now)
  end

  -- The entries stay, and what they leave of N is spread evenly over the window that ends at `at`, in place of what an
  -- earlier drain left: no less than that, for a correction may have taken more than N, and none of it sooner.
  function log.drained(rule, state, at)
    local before = missing_of(rule, state, at)
    local units = max(less(rule.n, entered(rule, state, at)), before)
    local ends, over_us = max(state.spread_at, at), rule.window_us
    if before > 0 then
      local left_us = min(state.spread_us, state.spread_at + counts_us(rule, state) - at)
      over_us = min(over_us, (multiply_divide(ends - state.spread_at + left_us, units, before)))
    end
    state.spread, state.spread_us, state.spread_since, state.spread_at, state.tail = units, over_us, at, ends, at
    state.probe_us, state.yields_to = 0, 0
    forget_moved(rule, state, at)
    return state
  end

  -- The service refused what was charged at `slot`, so it counts none of it: as much is missing instead, unless it was
  -- missing already when that was sent. Half of N at most, for a service may refuse a part of all calls, however few
  -- they are; where more than N was taken, the rest of it goes.
  function log.declined(rule, state, now, slot, units)
    local missing, before = missing_of(rule, state, now)
    local used, for_us = counted(rule, state, slot, slot), counts_us(rule, state)
    local is_room = missing < floor(rule.n / 2) or missing > less(rule.n, used)
    if now >= slot + for_us or not is_room or not log.take_back(state, slot, units) then return false end
    local left, over_us = less(rule.n, used - units), floor(rule.window_us / RETURNS)
    -- A refusal says next for how long; until then all of it for a part of a window.
    local at = less(now + over_us, rule.window_us + state.moved_us)
    if missing == 0 then
      state.spread_at, state.spread_us, state.probe_us, state.yields_to = at, 0, 0, 0
    elseif missing < before then
      -- None of it has returned by now.
      state.spread_us, state.probe_us = min(state.spread_us, state.spread_at + for_us - now), 0
    end
    state.spread, state.spread_at = max(min(max(missing + units, before), left), missing), max(state.spread_at, at)
    return true
  end

  -- The service refused a call that was `sent` then and asks for `wait_us`: what the entries left of N is not there
  -- before that, and returns evenly over a part of a window, all but one unit as much later as shows how that one does.
  -- What came free since it was sent is there; what has returned of what was missing is not, but for what calls up to
  -- this one took.
  function log.refused(rule, state, now, sent, wait_us)
    local took_us = less(now, sent)
    -- What was used when it was sent, and is no longer, says nothing of now. Of longer ago not all is kept.
    if sent + counts_us(rule, state) <= now then sent = now end
    sent = min(max(sent, less(now, rule.ahead_us)), now)
    local missing, before = missing_of(rule, state, now)
    local left = less(rule.n, counted(rule, state, now, sent))
    local left_then = less(rule.n, counted(rule, state, sent, sent))
    local is_told, first_us = missing > 0 and state.spread_us > 0, 0
    if missing > 0 then first_us = spread_age_us(state, missing - 1) end
    -- Nothing has returned since an earlier refusal said when.
    local waits = missing > 0 and state.probe_us > 0 and missing == state.spread
    -- A later end than any wait makes is one of before a clock was set back.
    local latest = now + SOFT_WAIT_US
    local was_at = min(state.spread_at, latest)
    local first = missing > 0 and less(was_at, first_us) or 0
    state.spread, state.spread_since = max(missing, left, min(before, left_then)), now
    -- Where none asks for a wait nothing says when, and it is asked less often.
    local window_us, probe_us = rule.window_us, 0
    if wait_us > 0 or waits then
      window_us = max(floor(rule.window_us / RETURNS), 1)
      probe_us = max(min(PROBES * took_us, floor(rule.window_us / 2)), window_us)
    end
    -- However late the first of it is by now, all of it is back in time.
    state.spread_us = max(min(window_us, latest - first - 1), 1)
    state.probe_us = min(probe_us, less(latest - first, state.spread_us))
    state.tail = max(state.ats[#state.ats] or 0, now)
    forget_moved(rule, state, now)
    -- A reader may have no margin.
    local for_us, near_us = rule.window_us + state.moved_us, floor(rule.window_us / BURST)
    local begins = less(now + wait_us, for_us)
    if waits then
      -- Calls of one burst are refused one after the other: a little later is no news.
      local from = first + near_us >= begins and first or begins
      state.probe_us = max(state.probe_us, less(was_at, state.spread_us + from))
      state.spread_at = from + returns_us(state)
    else
      state.spread_at = begins + returns_us(state)
      -- None of it sooner than before; what was only declined says nothing of when.
      if is_told then
        state.spread_at = max(state.spread_at, was_at, first + spread_age_us(state, missing - 1))
      end
    end
    -- What is booked from now on and leaves at about the same time is there, and goes first.
    state.yields_to = 0
    if state.probe_us > 0 then state.yields_to = less(min(state.spread_at + near_us, latest), returns_us(state)) end
    return state
  end

  -- N units evenly over the window that ends at `at`.
  function log.full(rule, at, key)
    return log.drained(rule, state_of(key, 0), at)
  end

  function log.fresh_at(rule, state)
    return max(state.tail, state.spread_at) + kept_us(rule, state)
  end

  function log.used(rule, state, now)
    return entered(rule, state, now) + (missing_of(rule, state, now))
  end

  function log.clamp(rule, state)
    state.totals[1] = min(state.totals[1], rule.n)
  end

  -- Whether narrow elements can tell all times and totals apart.
  local function is_narrow(state)
    if size(state) == 0 then return true end
    state.oldest = state.oldest or entry(state, 0)
    return state.tail - state.oldest < TIMES and total_of(state) - state.base < TOTALS
  end

  -- Writes the entries that are new; all of them where the list is another than it was.
  function log.save(rule, state, key, version)
    local wide = rule.wide or not is_narrow(state)
    if wide and not state.wide then gather(state) end
    local rewrite = state.rewrite or state.drop >= state.old
    if rewrite then state.wide = wide end
    local ats, totals, form, values = state.ats, state.totals, state.wide and WIDE or NARROW, {}
    for i = state.first, #ats - 1 do
      if state.wide then
        values[#values + 1] = pack(form, ats[i], totals[i])
      else
        values[#values + 1] = pack(form, ats[i] % TIMES, totals[i] % TOTALS)
      end
    end
    local newest = #ats
    values[#values + 1] = pack(
      HEAD, state.wide and 76 or 108, version, ats[newest] or 0, totals[newest] or state.base, state.base,
      counts_us(rule, state), state.spread, state.spread_since, state.spread_at, state.spread_us, state.probe_us,
      state.yields_to, state.moved_us
    )
    local from = 1
    if rewrite then
      redis.call('DEL', key)
    else
      if state.drop + state.popped > 0 then redis.call('LTRIM', key, text(state.drop), text(-1 - state.popped)) end
      redis.call('LSET', key, '-1', values[1])
      from = 2
    end
    while from <= #values do
      redis.call('RPUSH', key, unpack(values, from, min(from + CHUNK - 1, #values)))
      from = from + CHUNK
    end
  end

  return log
end
