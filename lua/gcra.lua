-- Token bucket, leaky bucket and the plain rate: one debt that time repays.
--
-- A unit is P ticks and a microsecond repays R ticks, so that no remainder is ever thrown away. A debt is never
-- below zero: a bucket does not earn while it is full. Twin of src/algorithm/gcra.rs; keep names and order
-- alike.
--
-- Value: 'g', version, at (us), debt (ticks), p, r (ticks), most (units); 'G' where the numbers are large, or
-- the debt is in ticks of another P than the writer's.

local function gcra()
  local SMALL, LARGE = '>BI5I7I5I4I3I3', '>BI5I7I7I7I7I7I7'
  local STAND_US = 250000
  local gcra = { tail = 'at' }

  -- Numbers: p, r, cap, full (ticks), most (units), hold (us, -1: not leaky), ahead (us); P and R of a reader
  -- with the default margin.
  function gcra.rule(args, i)
    return {
      kind = gcra, p = args[i] + 0, r = args[i + 1] + 0, cap = args[i + 2] + 0, full = args[i + 3] + 0,
      most = args[i + 4] + 0, hold = args[i + 5] + 0, ahead_us = args[i + 6] + 0,
      wide_p = args[i + 7] + 0, wide_r = args[i + 8] + 0,
    }, i + 9
  end

  function gcra.fresh()
    return { debt = 0, at = 0, p = 0 }
  end

  function gcra.decode(value)
    local letter, version, at, debt, p, by_p, r, most = unpack_from(SMALL, value)
    if letter == 71 then
      letter, version, at, debt, p, by_p, r, most = unpack_from(LARGE, value)
      return { debt = debt, at = at, p = p, version = version, by_p = by_p, by_r = r, by_most = most }
    end
    return { debt = debt, at = at, p = p, version = version, by_p = p, by_r = by_p, by_most = r }
  end

  function gcra.encode(rule, state, version)
    local p, r = rule.p, rule.r
    if state.p == p and state.debt < 1099511627776 and p < 4294967296 and r < 16777216 and rule.most < 16777216
    then
      return pack(SMALL, 103, version, state.at, state.debt, p, r, rule.most)
    end
    return pack(LARGE, 71, version, state.at, state.debt, state.p, p, r, rule.most)
  end

  -- The numbers of who wrote the state.
  function gcra.writer(state)
    return { kind = gcra, p = state.by_p, r = state.by_r, most = state.by_most }
  end

  function gcra.numbers(state, out, n)
    out[n + 1], out[n + 2], out[n + 3] = state.debt, state.at, state.p
    return n + 3
  end

  function gcra.of_numbers(_, args, i)
    return { debt = args[i] + 0, at = args[i + 1] + 0, p = args[i + 2] + 0 }, i + 3
  end

  -- The whole debt at the tail, in this limit's ticks: whole units by the new P, the rest exactly, rounded up.
  local function owed(state, p)
    if state.p == p or state.debt == 0 then return state.debt end
    local units = floor(state.debt / state.p)
    local rest = multiply_divide_up(state.debt - units * state.p, p, state.p)
    return min(units * p + rest, QUARTER)
  end

  local function repaid(rule, state, now)
    return rule.r * (now - state.at)
  end

  -- The deepest debt that this limit's own calls can leave behind: of every kind of bucket, its dearest call's.
  local function deepest(rule)
    return rule.most * rule.p
  end

  -- Whether other numbers left a debt that is deeper.
  local function is_beyond(rule, state)
    return state.p ~= rule.p and owed(state, rule.p) > deepest(rule)
  end

  -- The debt at `now` that a call has to wait for. Of what was charged under other numbers no more than this
  -- limit's own dearest call could owe, or smaller numbers would be locked out by larger ones.
  local function debt(rule, state, now)
    local owes = state.debt
    if state.p ~= rule.p then
      if is_beyond(rule, state) then owes = deepest(rule) else owes = owed(state, rule.p) end
    end
    owes = owes - rule.r * (now - state.at)
    if owes > 0 then return owes else return 0 end
  end

  function gcra.earliest(rule, state, now, cost)
    if now < state.at then now = state.at end
    local debt = debt(rule, state, now)
    local room = less(rule.cap, cost * rule.p)
    if debt <= room then return now else return now + ceil((debt - room) / rule.r) end
  end

  -- A debt beyond this limit's own stays whole, in the ticks of the one whose it is: cut short here, it would be
  -- a fresh budget there.
  local function charge_beyond(rule, state, at, units)
    local elapsed = at - state.at
    -- r * elapsed * state.p / rule.p, of which r * state.p is divided first: its quotient is exact, or so large
    -- that nothing is left.
    local quotient, remainder = multiply_divide(rule.r, state.p, rule.p)
    local repaid = elapsed * quotient + multiply_divide(elapsed, remainder, rule.p)
    local left = less(state.debt, repaid)
    -- All repaid, it equals a fresh one and may have been forgotten.
    if left == 0 then state.p = rule.p end
    state.debt, state.at = min(left + units * state.p, QUARTER), at
  end

  function gcra.commit(rule, state, at, cost)
    if state.p ~= rule.p and is_beyond(rule, state) then
      return charge_beyond(rule, state, at, cost)
    end
    local charged = debt(rule, state, at) + cost * rule.p
    if charged > QUARTER then charged = QUARTER end
    state.debt, state.at, state.p = charged, at, rule.p
  end

  -- A debt that only the former numbers could make is carried in ticks that are nobody's own, so that the new
  -- ones tell it from theirs even where P is the same.
  function gcra.adopt(rule, state)
    if state.p ~= rule.p or state.debt <= deepest(rule) then return false end
    if state.by_most * state.by_p <= deepest(rule) then return false end
    state.debt, state.p = 2 * state.debt, 2 * state.p
    return true
  end

  -- More is owed; less is owed by what time cannot have repaid already, had it never been charged. `mark` is the
  -- debt just before the charge.
  function gcra.settle(rule, state, now, slot, charged, used, mark)
    now = max(now, state.at)
    gcra.commit(rule, state, now, less(used, charged))
    if used < charged and state.p == rule.p then
      local owed_without = mark + used * rule.p
      local repaid = rule.r * less(now, slot)
      local idle = less(repaid, owed_without)
      state.debt = less(state.debt, less((charged - used) * rule.p, idle))
    end
  end

  -- A debt that is full, or deeper where a dear call left more.
  function gcra.drained(rule, state, at)
    return { debt = max(debt(rule, state, at), rule.full), at = at, p = rule.p }
  end

  function gcra.full(rule, at)
    return { debt = rule.full, at = at, p = rule.p }
  end

  -- The first instant at which the state equals a fresh one, for readers with and without a margin.
  function gcra.fresh_at(rule, state)
    local whole = ceil(owed(state, rule.p) / rule.r)
    if rule.wide_p ~= rule.p or rule.wide_r ~= rule.r then
      whole = max(whole, ceil(owed(state, rule.wide_p) / rule.wide_r))
    end
    return state.at + whole
  end

  -- Units owed at `now`, rounded up.
  function gcra.used(rule, state, now)
    return ceil(debt(rule, state, max(now, state.at)) / rule.p)
  end

  -- No deeper than this limit's own calls leave it: what a worker remembers is not beyond a budget.
  function gcra.clamp(rule, state)
    if state.p == rule.p then state.debt = min(state.debt, deepest(rule)) end
  end

  -- What was lost after a worker saw this state are charges too: what time repaid in a quarter of a second since is
  -- taken as used by them, as it is where calls are many. No more, and not where that is no unit, for there nobody may
  -- have used it. In windows and logs nothing is repaid within one.
  function gcra.stand(rule, state, now)
    if state.at < now and rule.r * STAND_US >= rule.p then state.at = min(now, state.at + STAND_US) end
  end

  -- Whether both are one state, whatever its version.
  function gcra.equal(a, b)
    return a.debt == b.debt and a.at == b.at and a.p == b.p
  end

  return gcra
end
