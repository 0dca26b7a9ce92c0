-- One trip: decides over all limits of a key, or of several keys, for callers that wait in order; all limits that
-- a call touches are charged at one instant, or nothing is. Without callers it only reads, and reports seats.
--
-- KEYS, for each part: its pause, then each limit that time frees.
--       then for each limit of seats of all parts: leases, sessions, queue.
--       then, where there is an ARGV 6: the live workers.
-- ARGV  1 quick.lua's
--       2 numbers, each a double, one behind the other, for an argument of its own costs Redis more than the rest:
--         now (us; 0: Redis's clock)
--         forced (1: charges what was already sent, whatever the state)
--         parts; and for each part
--           limits
--           its budget (us)
--           what was seen of its pause: ends, probe_at, probe_every, probed, drained (us), generation
--           for each limit: first byte of its kind's values, 's' for seats, and its numbers as in the kind's file;
--             then, unless of seats, version of the state that was seen (0: none)
--         runs of callers of one cost; and for each run
--           callers
--           costs (units), one a limit of all parts
--           for each caller how long it may still be held, apart from what a leaky bucket holds it (us)
--         for each state that was seen: how many numbers it has, and these as in the kind's file
--         for each part what became of calls: of how many slots; and for each
--           the slot; how long before the trip the last answer came (us), or -1 if the service counts none of them
--           what they were charged (units), one a limit of the part
--       then, where there are limits of seats:
--       3 session
--       4 channel of everyone
--       5 lease (us)
--       6 birth of the list of live workers (us; 0: not known)
-- Gives numbers, each a double, one behind the other, for an array costs Redis more than the rest:
--       now (us)
--       for each part its pause: ends, probe_at, probe_every, probed, drained (us), generation; and for each limit
--         version and numbers of its state; of seats only those in use
--       how the batch ended (0 all, 1 span, 2 ahead, 3 seatless, 4 paused); two numbers of that (2: instant; 3: index
--         of the limit; 4: its end and when to ask again)
--       for each limit of seats: epoch, granted, used, time left of the next lease to end (us), 1 while in its queue
--       for each caller that was decided: wait to its slot (us), or -1 less the wait after which it could go

local HORIZON_US, LONGEST_US, SHORTEST_US = 400000, 100000, 10000
local ROUNDS = 8

local keys = KEYS
local args = { unpack_from('<' .. string.rep('d', #ARGV[2] / 8), ARGV[2]) }
args[#args] = nil
local now, late_ms = clock(args[1])
local forced = args[2] == 1

-- The limits of all parts, and those of them that are seats.
local limits, parts, seated = {}, {}, {}
local arg, key = 4, 1
for p = 1, args[3] do
  local part = { key = key, first = #limits + 1, last = #limits + args[arg], budget_us = args[arg + 1], arg = arg + 2 }
  parts[p] = part
  key = key + 1
  arg = arg + 8
  for l = part.first, part.last do
    local letter = args[arg]
    if letter == 115 then
      local limit = { is_seats = true, arg = arg + 1 }
      limits[l], seated[#seated + 1] = limit, limit
      arg = arg + 9
    else
      local kind = kind_of(letter)
      local limit = { kind = kind, key = keys[key], value = key, dirty = false }
      limits[l] = limit
      limit.rule, arg = kind.rule(args, arg + 1)
      limit.seen = args[arg]
      arg = arg + 1
      key = key + 1
    end
  end
end

-- The runs of callers of one cost, each with the limits that it touches.
local runs = {}
for i = 1, args[arg] do
  local run = { callers = args[arg + 1], held = arg + 2 + #limits, asked = {}, costs = {}, seats = {}, seat_costs = {} }
  runs[i] = run
  for l = 1, #limits do
    local limit, cost = limits[l], args[arg + 1 + l]
    if cost > 0 and limit.is_seats then
      run.seats[#run.seats + 1], run.seat_costs[#run.seats + 1] = l, cost
    elseif cost > 0 then
      run.asked[#run.asked + 1], run.costs[#run.asked + 1] = limit, cost
    end
  end
  arg = run.held - 1 + run.callers
end
arg = arg + 1
for l = 1, #limits do
  if not limits[l].is_seats and limits[l].seen > 0 then
    limits[l].arg = arg + 1
    arg = arg + 1 + args[arg]
  end
end

for p = 1, #parts do
  local part = parts[p]
  part.fates, part.fate = args[arg], arg + 1
  arg = part.fate + part.fates * (3 + part.last - part.first)
end

local out, n = { now }, 1
local values = redis.call('MGET', unpack(keys, 1, key - 1))
local held_until, ask_again = 0, 0

local worker
if #seated > 0 then
  worker = {
    session = ARGV[3], channel = ARGV[4], lease_us = ARGV[5] + 0, callers = #runs > 0, blocked = false,
    late_ms = late_ms,
  }
  if ARGV[6] then
    local born = redis.call('HGET', keys[#keys], 'born') or 0
    worker.blocked = ARGV[6] ~= '0' and born + 0 ~= ARGV[6] + 0
  end
  local kind = seats()
  for i = 1, #seated do
    local limit = seated[i]
    limit.kind = kind
    limit.rule = kind.rule(args, limit.arg, keys, key)
    key = key + 3
    kind.open(limit.rule, worker, now)
  end
end

-- What became of a part's calls, under one of its limits.
local function hear(part, limit, index)
  local kind, each = limit.kind, 3 + part.last - part.first
  for i = part.fate, part.fate + (part.fates - 1) * each, each do
    local slot, ago_us, units, changed = args[i], args[i + 1], args[i + 2 + index]
    if ago_us >= 0 then
      changed = kind.arrived(limit.rule, limit.state, slot, units, now - ago_us)
    elseif kind.is_list then
      changed = kind.take_back(limit.state, slot, units)
    end
    limit.dirty = changed or limit.dirty
  end
end

for p = 1, #parts do
  local part = parts[p]
  local pause = pause_of(values[part.key])
  part.pause = pause
  part.dirty = heal_pause(pause, args, part.arg, now, part.budget_us)
  out[n + 1], out[n + 2], out[n + 3] = pause.ends, pause.probe_at, pause.probe_every
  out[n + 4], out[n + 5], out[n + 6] = pause.probed, pause.drained, pause.generation
  n = n + 6
  if now < pause.ends then
    part.holds = true
    held_until = max(held_until, pause.ends)
    ask_again = max(ask_again, min(pause.probe_at, pause.ends))
  end
  local drained = drained_by(pause, now, part.budget_us)
  local remembers = args[part.arg + 5] >= pause.generation
  for l = part.first, part.last do
    local limit = limits[l]
    if limit.is_seats then
      n = n + 1
      out[n] = limit.rule.used
    else
      find(limit, values[limit.value], now)
      if remembers and limit.seen > 0 and limit.seen ~= limit.version then
        heal(limit, limit.seen, args, limit.arg, now)
      end
      read(limit, now, drained)
      if limit.kind.arrived then hear(part, limit, l - part.first) end
      n = n + 1
      out[n] = limit.version
      n = limit.kind.numbers(limit.state, out, n, limit.rule, now)
    end
  end
end

-- The first instant from now on at which all costs fit together: asked again and again until all agree, for a
-- limit may be open, closed and open again. Unsettled after eight rounds it is a lower bound.
local function joint_earliest(asked, costs)
  local at = now
  for _ = 1, ROUNDS do
    local latest = at
    for i = 1, #asked do
      local limit = asked[i]
      local fits = limit.kind.earliest(limit.rule, limit.state, at, costs[i])
      if fits > latest then latest = fits end
    end
    -- One limit agrees with itself.
    if latest == at or #asked == 1 then return latest, true end
    at = latest
  end
  return at, false
end

-- A leaky bucket holds a call in its own time, as far as its queue reaches: how long it holds this one, or when a
-- full queue has room for it.
local function leaky_hold(asked, costs)
  local hold_us, full_until = 0, 0
  for i = 1, #asked do
    local limit = asked[i]
    local rule = limit.rule
    if rule.hold >= 0 then
      local slot_us = limit.kind.earliest(rule, limit.state, now, costs[i]) - now
      hold_us = max(hold_us, slot_us)
      if slot_us > rule.hold then full_until = max(full_until, now + slot_us - rule.hold) end
    end
  end
  return hold_us, full_until
end

-- Charged as more used now, not at a slot far ahead: it was sent already.
local function charge(asked, costs)
  for i = 1, #asked do
    local limit = asked[i]
    local rule, kind, state = limit.rule, limit.kind, limit.state
    if kind.earliest(rule, state, now, costs[i]) <= now then
      kind.commit(rule, state, now, costs[i])
    else
      kind.settle(rule, state, now, now, 0, costs[i], 0)
    end
    limit.dirty = true
  end
end

local ALL, SPAN, AHEAD, SEATLESS, PAUSED = 0, 1, 2, 3, 4
local ended, detail, detail_2 = ALL, 0, 0
local slots, decided, granted = {}, 0, 0
local probes = held_until > 0 and not forced
local closed = probes and ask_again > now
if closed and #runs > 0 then ended = PAUSED end

-- Where the schedule stands when the trip arrives, and how far this trip may book.
local stood, ahead_us, leaky = now, EXACT, false
local function survey(asked)
  for i = 1, #asked do
    local limit = asked[i]
    stood = max(stood, limit.state[limit.kind.tail])
    ahead_us = min(ahead_us, limit.rule.ahead_us)
    leaky = leaky or limit.rule.hold >= 0
  end
end

for r = 1, #runs do
  survey(runs[r].asked)
  if not forced and not closed then
    for i = 1, #runs[r].seats do limits[runs[r].seats[i]].rule.satisfied = true end
  end
end
local last_in_span = stood
  + max(SHORTEST_US, min(LONGEST_US, floor((HORIZON_US - (stood - now)) / 2)))

for r = 1, #runs do
  if ended ~= ALL then break end
  local run = runs[r]
  local asked, costs, wanted, seat_costs = run.asked, run.costs, run.seats, run.seat_costs
  for c = 0, run.callers - 1 do
    if forced then
      charge(asked, costs)
      decided = decided + 1
      slots[decided] = 0
    else
      if probes and granted > 0 then
        ended = PAUSED
        break
      end
      for i = 1, #wanted do
        local rule = limits[wanted[i]].rule
        if limits[wanted[i]].kind.available(rule) < seat_costs[i] then
          ended, detail = SEATLESS, wanted[i] - 1
          rule.satisfied = false
          -- Only who can wait is given one later.
          if leaky or args[run.held + c] > 0 then rule.need = seat_costs[i] end
          break
        end
      end
      if ended ~= ALL then break end
      local held_us, full_until = args[run.held + c], 0
      if leaky then
        local hold_us
        hold_us, full_until = leaky_hold(asked, costs)
        held_us = held_us + hold_us
      end
      local at, agreed = joint_earliest(asked, costs)
      if full_until > 0 then
        decided = decided + 1
        slots[decided] = now - full_until - 1
      elseif at - now > held_us then
        decided = decided + 1
        slots[decided] = now - at - 1
      elseif not agreed or at - now > ahead_us then
        ended, detail = AHEAD, at
        break
      elseif granted > 0 and at > last_in_span and not leaky then
        -- A leaky bucket's queue is its own: whoever asks is in it, or refused.
        ended = SPAN
        break
      else
        for i = 1, #asked do
          local limit = asked[i]
          limit.kind.commit(limit.rule, limit.state, at, costs[i])
          limit.dirty = true
        end
        for i = 1, #wanted do
          local limit = limits[wanted[i]]
          limit.kind.take(limit.rule, seat_costs[i])
        end
        granted = granted + 1
        decided = decided + 1
        slots[decided] = at - now
        if probes then
          for p = 1, #parts do
            local part = parts[p]
            if part.holds then
              local pause = part.pause
              pause.probed, pause.probe_at = at, min(at + pause.probe_every, EXACT)
              part.dirty = true
            end
          end
        end
      end
    end
  end
end
if ended == PAUSED then
  ask_again = 0
  for p = 1, #parts do
    if parts[p].holds then ask_again = max(ask_again, min(parts[p].pause.probe_at, parts[p].pause.ends)) end
  end
  detail, detail_2 = held_until, ask_again
end

for p = 1, #parts do
  local part = parts[p]
  if part.dirty then save_pause(keys[part.key], part.pause, now, part.budget_us, late_ms) end
end
for l = 1, #limits do
  if limits[l].dirty then save(limits[l], now, late_ms) end
end
out[n + 1], out[n + 2], out[n + 3] = ended, detail, detail_2
n = n + 3
for i = 1, #seated do
  local rule = seated[i].rule
  if ended == PAUSED then rule.satisfied = false end
  out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = seated[i].kind.close(rule, worker, now)
  n = n + 5
end
for i = 1, decided do out[n + i] = slots[i] end
n = n + decided
return pack('<' .. string.rep('d', n), unpack(out, 1, n))
