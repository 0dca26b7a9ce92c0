-- Corrects a charge under one limit to what was really used.
--
-- KEYS  1 the limit
-- ARGV  1 now (us; 0: Redis's clock)
--       2 slot of the charge (us)
--       3 charged, 4 used (units)
--       5 the charge's mark: a bucket's debt just before it (ticks)
--       then the limit's kind (first byte of its value) and numbers
-- Gives 1 if the state was changed

local now, late_ms = clock(ARGV[1])
local slot, charged, used, mark = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local kind = kind_of(string.byte(ARGV[6]))
local limit = { kind = kind, key = KEYS[1], rule = (kind.rule(ARGV, 7)), version = 0, state = kind.fresh(KEYS[1]) }

local value = redis.call('MGET', limit.key)[1] or redis.call('LINDEX', limit.key, '-1')
if value then
  -- A key that other numbers rule by now, of another kind, has no charge of ours to correct.
  if kind_of(string.byte(value)) ~= kind then return 0 end
  local state = kind.decode(value, limit.key)
  if kind.is_same and not kind.is_same(limit.rule, state) then return 0 end
  limit.state, limit.version = state, state.version
end
if used == charged or kind.settle(limit.rule, limit.state, now, slot, charged, used, mark) == false then return 0 end
save(limit, now, late_ms, used < charged and value)
return 1
