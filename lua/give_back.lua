-- Uncharges a booking that nobody wants, where it is still the last one; its turn as a probe in any case.
--
-- KEYS  1 the key's pause
--       then each limit that time frees
-- ARGV  1 slot of the booking (us)
--       then for each limit: kind (first byte of its value) and numbers; cost (units); and unless the cost is 0 or
--         the kind is the log's, how many numbers a state has and those after the booking, and the same of the
--         state before it
-- Gives how many limits were uncharged

local slot, arg, given = ARGV[1] + 0, 2, 0

local value = redis.call('GET', KEYS[1])
if value then
  local pause = pause_of(value)
  if pause.probed == slot then
    -- The probe was not sent: the next call is it.
    pause.probed, pause.probe_at = 0, slot
    redis.call('SET', KEYS[1], pause_value(pause), 'KEEPTTL')
  end
end

for k = 2, #KEYS do
  local kind = kind_of(string.byte(ARGV[arg]))
  local limit = { kind = kind, key = KEYS[k] }
  limit.rule, arg = kind.rule(ARGV, arg + 1)
  local cost = ARGV[arg] + 0
  arg = arg + 1
  if cost > 0 then
    local own
    if kind.is_list then
      value = redis.pcall('LINDEX', limit.key, '-1')
      own = type(value) == 'string'
    else
      value = redis.pcall('GET', limit.key)
      own = type(value) == 'string' and kind_of(string.byte(value)) == kind
    end
    local after, before
    if not kind.is_list then
      after, arg = kind.of_numbers(limit.rule, ARGV, arg + 1)
      before, arg = kind.of_numbers(limit.rule, ARGV, arg + 1)
    end
    if own then
      local state = kind.decode(value, limit.key)
      limit.version = state.version
      local last
      if kind.is_list then
        limit.state, last = state, kind.take_back(state, slot, cost)
      else
        limit.state, last = before, kind.equal(state, after)
      end
      if last then
        save(limit, 0, 0, true)
        given = given + 1
      end
    end
  end
end
return given
