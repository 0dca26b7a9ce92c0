-- Shared seats: how many calls of a whole fleet are under way at once.
--
-- Each process tells in absolute numbers what it has in use and which grants it has heard of, so that a report
-- that is repeated, late or lost can only hold too much. What is in use is always taken, even above the cap; new
-- seats are given while the total is below it, to the queue first. Twin of src/algorithm/seats.rs where all
-- processes are one.
--
-- Keys: leases, a sorted set of sessions by the instant at which their lease ends (us); sessions, a hash of
-- "epoch:turn:granted:held:need" by session, and of '#used', the sum of what is held, and '#epoch', the last one
-- given; queue, a sorted set of sessions that wait, by the instant since when (us).

local function seats()
  local seats = {}
  -- Dead sessions that one call clears away, and waiting ones that it serves.
  local REAP, SERVE = 8, 16

  -- Numbers: cap. Report: epoch, turn, seen, in_use, spare; 1 where it may take; 1 where others of this process wait.
  function seats.rule(args, i, keys, k)
    return {
      kind = seats, cap = args[i] + 0, most = args[i] + 0, hold = -1, ahead_us = EXACT,
      key = string.sub(keys[k], 1, -3), leases = keys[k], sessions = keys[k + 1], queue = keys[k + 2],
      epoch = args[i + 1] + 0, turn = args[i + 2] + 0, seen = args[i + 3] + 0, in_use = args[i + 4] + 0,
      spare = args[i + 5] + 0, may_take = args[i + 6] + 0 == 1, waits = args[i + 7] + 0 == 1,
    }
  end

  local function read(value)
    if not value then return nil end
    local epoch, turn, granted, held, need = string.match(value, '^(%d+):(%d+):(%d+):(%d+):(%d+)$')
    return { epoch = epoch + 0, turn = turn + 0, granted = granted + 0, held = held + 0, need = need + 0 }
  end

  local function session_of(rule, name)
    return read(redis.call('HGET', rule.sessions, name))
  end

  local function written(session)
    return string.format(
      '%.0f:%.0f:%.0f:%.0f:%.0f', session.epoch, session.turn, session.granted, session.held, session.need
    )
  end

  local function forget(rule, name)
    redis.call('HDEL', rule.sessions, name)
    redis.call('ZREM', rule.leases, name)
    redis.call('ZREM', rule.queue, name)
  end

  -- Takes what a process says it has. What is kept of it is written at the end.
  local function apply(rule, worker, mine)
    local asks = worker.callers or rule.in_use > 0
    if mine and rule.turn <= mine.turn then
      -- Late or repeated: nothing that it says is news, and nothing that it asks for is asked any more.
      rule.mine, rule.blocked = mine, true
      return
    end
    if not mine and not asks and rule.epoch == 0 then
      rule.blocked = true
      return
    end
    if not mine then
      rule.blocked = rule.epoch ~= 0
      rule.is_new, rule.lost = true, rule.blocked
      mine = { turn = 0, granted = 0, held = 0, need = 0 }
    elseif rule.epoch == 0 then
      -- It has heard of no grant in that life.
      mine.epoch, mine.granted = nil, 0
    elseif rule.epoch ~= mine.epoch then
      -- Forgotten since it last heard, or what it heard was lost.
      rule.blocked, rule.lost = true, true
      if rule.epoch > mine.epoch then mine.epoch = nil end
    end
    mine.turn, mine.granted = rule.turn, max(mine.granted, rule.seen)
    local held = rule.in_use + mine.granted - rule.seen
    rule.used, mine.held = rule.used + held - mine.held, held
    rule.mine, rule.current = mine, true
  end

  local function reap(rule, worker, now)
    local dead = redis.call('ZRANGEBYSCORE', rule.leases, '-inf', text(now), 'LIMIT', '0', text(REAP))
    for i = 1, #dead do
      if not rule.current or dead[i] ~= worker.session then
        local session = session_of(rule, dead[i])
        rule.used = less(rule.used, session and session.held or 0)
        forget(rule, dead[i])
        rule.changed = true
      end
    end
  end

  -- Before anything is decided: the report, and those whose lease is over.
  function seats.open(rule, worker, now)
    local known = redis.call('HMGET', rule.sessions, '#used', '#epoch', worker.session)
    rule.used, rule.last_epoch, rule.need = (known[1] or 0) + 0, (known[2] or 0) + 0, 0
    apply(rule, worker, read(known[3]))
    reap(rule, worker, now)
    rule.blocked = rule.blocked or worker.blocked or not rule.may_take
    if not rule.mine then rule.spare = 0 end
    local head = redis.call('ZRANGE', rule.queue, '0', '0')[1]
    rule.is_first = not head or head == worker.session
  end

  -- How many seats one call can have now.
  function seats.available(rule)
    if rule.blocked or not rule.is_first then return rule.spare end
    return rule.spare + less(rule.cap, rule.used)
  end

  -- Seats for one call: those in hand first.
  function seats.take(rule, cost)
    local spare = min(rule.spare, cost)
    rule.spare = rule.spare - spare
    local new = cost - spare
    if new > 0 then
      local mine = rule.mine
      rule.used, mine.granted, mine.held = rule.used + new, mine.granted + new, mine.held + new
    end
  end

  -- Gives what is free to those who wait, oldest first, and all that the first one's call needs or nothing.
  local function serve(rule, worker)
    for _ = 1, SERVE do
      if rule.used >= rule.cap then return end
      local head = redis.call('ZRANGE', rule.queue, '0', '0')[1]
      if not head then return end
      local is_mine = head == worker.session
      if is_mine and rule.blocked then return end
      local session = is_mine and rule.mine or session_of(rule, head)
      local waits_on = false
      if session then
        local need = max(1, session.need)
        if rule.used + need > rule.cap then return end
        rule.used, session.granted, session.held = rule.used + need, session.granted + need, session.held + need
        -- The call that this trip asked for may need more than another one of its process.
        waits_on = is_mine and need < rule.need
        session.need = waits_on and rule.need or 0
        if not is_mine then
          redis.call('HSET', rule.sessions, head, written(session))
          redis.call('PUBLISH', worker.channel .. head, string.format(
            's %.0f %.0f %s', session.epoch, session.granted, rule.key
          ))
        end
      end
      if not waits_on then redis.call('ZREM', rule.queue, head) end
      rule.changed = true
    end
  end

  -- After everything was decided: who waits, who is served, what is kept. Of a process that has nothing and waits for
  -- nothing that is nothing.
  function seats.close(rule, worker, now)
    local mine, name = rule.mine, worker.session
    if rule.current then
      if not rule.blocked and rule.need > 0 then
        -- Of several that wait in a process the least: what is too little for one goes back.
        mine.need = rule.waits and mine.need > 0 and min(mine.need, rule.need) or rule.need
        redis.call('ZADD', rule.queue, 'NX', text(now), name)
      elseif mine.need > 0 and (rule.blocked or (not rule.waits and (rule.satisfied or not worker.callers))) then
        -- Nobody waits, or may be served, by another's trip either.
        redis.call('ZREM', rule.queue, name)
        mine.need = 0
      end
    end
    if not worker.blocked then serve(rule, worker) end
    local is_queued = mine and mine.need > 0
    local kept = {}
    if rule.current and mine.held == 0 and not is_queued and not rule.lost then
      if not rule.is_new then forget(rule, name) end
      rule.changed = rule.changed or not rule.is_new
      mine.epoch = 0
    elseif rule.current then
      -- One that was forgotten has to hear of it, even if it has nothing.
      if not mine.epoch then
        mine.epoch = max(rule.last_epoch + 1, now, rule.epoch + 1)
        kept = { '#epoch', text(mine.epoch) }
      end
      kept[#kept + 1], kept[#kept + 2] = name, written(mine)
      redis.call('ZADD', rule.leases, text(now + worker.lease_us), name)
      rule.changed = true
    end
    local next = redis.call('ZRANGE', rule.leases, '0', '0', 'WITHSCORES')[2]
    if rule.changed and next then
      redis.call('HSET', rule.sessions, '#used', text(rule.used), unpack(kept))
      -- No lease ends later, for all are as long.
      local px = text(ceil(worker.lease_us / 1000) + worker.late_ms)
      redis.call('PEXPIRE', rule.leases, px)
      redis.call('PEXPIRE', rule.sessions, px)
      redis.call('PEXPIRE', rule.queue, px)
    elseif rule.changed then
      redis.call('DEL', rule.leases, rule.sessions, rule.queue)
    end
    local lease_left = next and less(next + 0, now) or 0
    return mine and mine.epoch or 0, mine and mine.granted or rule.seen, rule.used, lease_left, is_queued and 1 or 0
  end

  return seats
end
