-- One bucket, as most policies have: what book.lua does, without its tables and functions, in a third of the time.
--
-- Only where all is as it mostly is: the worker's own numbers, no pause that holds or has to drain, nothing lost, no
-- clock that was set back, callers of one cost. Anything else goes on to book.lua, before a thing was written. The
-- arithmetic is that of `earliest` and `commit` in gcra.lua, the order that of book.lua; both are walked beside the
-- same model.
--
-- KEYS and what is given: as in book.lua.
-- ARGV  1 empty where it has nothing to try; else numbers, each a double, one behind the other:
--         now (us; 0: Redis's clock)
--         the key's budget (us)
--         what was seen of its pause: ends, drained (us), generation
--         p, r, cap (ticks), most (units), ahead (us)
--         version of the state that was seen (0: none), and when that state equals a fresh one (us)
--         callers
--         their cost (units)
--         for each caller how long it may still be held (us)

do
  local ceil, pack, unpack_from, call = math.ceil, struct.pack, struct.unpack, redis.call
  local numbers = ARGV[1]
  if numbers ~= '' then
    local now, budget_us, seen_ends, seen_drained, seen_generation, p, r, cap, most, ahead_us, seen, seen_fresh_at,
      count, cost, held_us = unpack_from('<ddddddddddddddd', numbers)
    local late_ms = 3600000
    if now == 0 then
      local time = call('TIME')
      now, late_ms = time[1] * 1000000 + time[2], 0
    end
    local values = call('MGET', KEYS[1], KEYS[2])
    local pause, value = values[1], values[2]
    local letter, version, at, debt, state_p = 103, 0, 0, 0, 0
    if value then
      letter, version, at, debt, state_p = unpack_from('>BI5I7I5I4', value)
    elseif call('EXISTS', KEYS[2]) == 1 then
      -- The list of a sliding log.
      letter = 108
    end
    local ends, probe_at, probe_every, probed, drained, generation = 0, 0, 0, 0, 0, 0
    local is_usual = letter == 103 and debt <= most * p and (state_p == p or debt == 0) and at <= now + ahead_us
    if pause then
      letter, ends, probe_at, probe_every, probed, drained, generation = unpack_from('>BI7I7I7I7I7I7', pause)
      local last = ends > drained and ends or drained
      is_usual = is_usual and now >= ends and (at >= last or now >= last + budget_us)
    end
    if seen > 0 then
      local writes = version - seen
      if writes < 0 or writes >= 32768 or seen % 65536 + writes >= 65536 then
        -- The state was never that one, which may have been lost, unless nothing is left of it.
        is_usual = is_usual and seen_fresh_at <= now
      end
    end
    if is_usual and (seen_generation < generation
      or seen_generation == generation and seen_ends <= ends and seen_drained <= drained)
    then
      local found_version, found_debt, found_at = version, debt, at
      local stood, charge = at > now and at or now, cost * p
      local room = cap > charge and cap - charge or 0
      local granted, ended, detail = 0, 0, 0
      local wait, waits
      if count == 1 then
        local slot, left = stood, debt - r * (stood - at)
        if left > room then
          local us = ceil((left - room) / r)
          slot, left = slot + us, left - r * us
        end
        wait = slot - now
        if wait > held_us then
          wait = -1 - wait
        elseif wait > ahead_us then
          wait, ended, detail = nil, 2, slot
        else
          debt, at, granted = (left > 0 and left or 0) + charge, slot, 1
        end
      else
        local held = { unpack_from('<' .. string.rep('d', count), numbers, 113) }
        local span = (400000 - (stood - now)) / 2
        span = span > 100000 and 100000 or span < 10000 and 10000 or span - span % 1
        local last, decided = stood + span - now, 0
        waits = held
        for i = 1, count do
          local slot = at > now and at or now
          local left = debt - r * (slot - at)
          if left > room then
            local us = ceil((left - room) / r)
            slot, left = slot + us, left - r * us
          end
          wait = slot - now
          if wait > held[i] then
            waits[i] = -1 - wait
          elseif wait > ahead_us then
            ended, detail = 2, slot
            break
          elseif granted > 0 and wait > last then
            ended = 1
            break
          else
            debt, at, granted = (left > 0 and left or 0) + charge, slot, granted + 1
            waits[i] = wait
          end
          decided = i
        end
        count = decided
      end
      if granted > 0 then
        if version == 0 then
          version = now % 16777216 * 65536 + 1
        else
          version = version - version % 65536 + (version + 1) % 65536
        end
        local px = ceil((at + ceil(debt / r) - now) / 1000)
        if px < 1 then px = 1 end
        -- As text, for Redis writes a number with seventeen digits, which takes it three times as long.
        call(
          'PSETEX', KEYS[2], string.format('%d', px + late_ms),
          pack('>BI5I7I5I4I3I3', 103, version, at, debt, p, r, most)
        )
      end
      if not waits then
        return pack(
          wait and '<ddddddddddddddd' or '<dddddddddddddd', now, ends, probe_at, probe_every, probed, drained,
          generation, found_version, found_debt, found_at, state_p, ended, detail, 0, wait
        )
      end
      local head = pack(
        '<dddddddddddddd', now, ends, probe_at, probe_every, probed, drained, generation, found_version, found_debt,
        found_at, state_p, ended, detail, 0
      )
      return head .. pack('<' .. string.rep('d', count), unpack(waits, 1, count))
    end
  end
end
