-- What every kind of limit shares: how a state is found, adopted, healed, read and kept.
--
-- A limit is a table of its rule, its kind's functions, its key and its state. A state that is missing is an
-- unused budget, so that expiry never changes a decision. Nothing is written but what was charged, and what
-- reading it made another: new numbers, a drain that is due, a clock that was set back, or what was lost. Twin of
-- src/algorithm/rule.rs; keep names and order alike.

-- Kinds by the first byte of a value, made only where one is met.
local makers = {
  [103] = gcra, [71] = gcra, [119] = window, [87] = window, [99] = sliding_counter, [108] = sliding_log,
  [76] = sliding_log,
}
local made = {}
local function kind_of(letter)
  local maker = makers[letter]
  local kind = made[maker]
  if not kind then
    kind = maker()
    made[maker] = kind
  end
  return kind
end

-- A version is three bytes of when the state came to be and two that count its writes: two versions tell whether
-- one state became the other, and which is the later.
local function next_version(version, now)
  if version == 0 then return now % 16777216 * 65536 + 1 end
  local born = version - version % 65536
  return born + (version + 1) % 65536
end

-- This rule's state for a key that other numbers ruled until now: what was used stays used.
local function adopt(limit, kind, state, now)
  local rule = limit.rule
  if kind == limit.kind and (not kind.is_same or kind.is_same(rule, state)) then
    if kind.adopt and kind.adopt(rule, state) then limit.dirty = true end
    return state
  end
  local used = min(kind.used(kind.writer(state), state, now), rule.most)
  local adopted = limit.kind.fresh(limit.key)
  if used > 0 then
    limit.kind.commit(rule, adopted, max(now, state[kind.tail]), used)
    limit.dirty = true
  end
  return adopted
end

-- Finds a limit's state, whoever wrote it. `value` is what a GET of its key gives.
local function find(limit, value, now)
  local kind = limit.kind
  if not value then
    value = redis.call('LINDEX', limit.key, '-1')
    if not value then
      limit.version, limit.state = 0, kind.fresh(limit.key)
      return
    end
  end
  local other = kind_of(string.byte(value))
  local state = other.decode(value, limit.key)
  limit.version = state.version
  limit.state = adopt(limit, other, state, now)
end

-- What a worker saw last, where it is later than what is found: that was lost. Never beyond one budget, and never
-- what equals a fresh one by now.
local function heal(limit, seen, args, i, now)
  local stored = limit.version
  local same = stored ~= 0 and stored - stored % 65536 == seen - seen % 65536
  if same then
    local ahead = (seen - stored) % 65536
    if ahead == 0 or ahead >= 32768 then return end
  end
  local rule, kind, tail = limit.rule, limit.kind, limit.kind.tail
  local state = kind.of_numbers(rule, args, i, limit.key)
  kind.clamp(rule, state)
  if kind.fresh_at(rule, state) <= now then return end
  if kind.stand and (same or stored == 0) then kind.stand(rule, state, now) end
  local found = limit.state
  if not same and stored ~= 0 then
    local at = max(now, state[tail], found[tail])
    if kind.used(rule, state, at) <= kind.used(rule, found, at) then return end
  end
  if state[tail] < found[tail] then kind.commit(rule, state, found[tail], 0) end
  if same then limit.version = seen end
  limit.state, limit.dirty = state, true
end

-- The state as a reader at `now` must take it: used up at `drained`, the end of the key's last pause, if it was
-- last booked before that; used up now, if it was booked further ahead than anyone books.
local function read(limit, now, drained)
  local rule, kind = limit.rule, limit.kind
  local tail = limit.state[kind.tail]
  -- A pause that ends later than any booking is one of before a clock was set back.
  if tail < drained and drained <= now + rule.ahead_us then
    limit.state, limit.dirty = kind.drained(rule, limit.state, drained), true
  elseif tail > now + rule.ahead_us then
    limit.state, limit.dirty = kind.full(rule, now, limit.key), true
  end
end

-- Writes a limit's state. It is kept until it equals a fresh one; `keep` leaves the expiry as it is, which is
-- later. `late_ms` is for tests, whose clock stands still while Redis's runs.
local function save(limit, now, late_ms, keep)
  local rule, kind, state = limit.rule, limit.kind, limit.state
  limit.version = next_version(limit.version, now)
  local px = text(max(1, ceil((kind.fresh_at(rule, state) - now) / 1000)) + late_ms)
  if kind.is_list then
    if keep then px = text(max(1, redis.call('PTTL', limit.key))) end
    kind.save(rule, state, limit.key, limit.version)
    redis.call('PEXPIRE', limit.key, px)
  elseif keep then
    redis.call('SET', limit.key, kind.encode(rule, state, limit.version), 'KEEPTTL')
  else
    -- Not SET, whose value would stand where the MGET before had a key: Redis keeps the place of a former argument
    -- for the next one there, however much longer it was.
    redis.call('PSETEX', limit.key, px, kind.encode(rule, state, limit.version))
  end
end

local function clock(arg)
  local now = arg + 0
  if now > 0 then return now, 3600000 end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2], 0
end
