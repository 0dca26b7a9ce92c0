-- Who is alive: renews one worker's lease, and says how many there are and which of them it is.
--
-- KEYS 1  hash: `born`, when this list was made, us; where it is another one than before, all state was lost
--      2  sorted set: worker -> end of its lease, us
--      3  sorted set: worker -> when it joined, us; its order is the workers' order
-- ARGV 1  the worker's session
--      2  its lease, us; 0 when it leaves
--      3  the channel of everyone, who is told when there are more or fewer
-- Gives {now, born, live workers, place of this one from 0}; us and counts.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local session, lease = ARGV[1], tonumber(ARGV[2])

-- Sent alone, so that exact.lua's is not there.
local function text(number)
  return string.format('%.0f', number)
end

-- A few at a time: whoever comes next takes the others.
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', 0, 64)
for i = 1, #gone do
  redis.call('ZREM', KEYS[2], gone[i])
  redis.call('ZREM', KEYS[3], gone[i])
end

local changed = #gone > 0
local born = tonumber(redis.call('HGET', KEYS[1], 'born') or 0)
if lease == 0 then
  changed = redis.call('ZREM', KEYS[2], session) == 1 or changed
  redis.call('ZREM', KEYS[3], session)
else
  if born == 0 then
    born = now
    redis.call('HSET', KEYS[1], 'born', text(born))
  end
  redis.call('ZADD', KEYS[2], text(now + lease), session)
  changed = redis.call('ZADD', KEYS[3], 'NX', text(now), session) == 1 or changed
  -- The list outlives a fleet that is started again, whose workers would take it for lost state otherwise.
  redis.call('PEXPIRE', KEYS[1], 86400000)
  local ms = math.ceil(lease / 1000) * 4
  redis.call('PEXPIRE', KEYS[2], ms)
  redis.call('PEXPIRE', KEYS[3], ms)
end

local place = redis.call('ZRANK', KEYS[3], session) or 0
local count = redis.call('ZCARD', KEYS[2])
if changed then
  redis.call('PUBLISH', ARGV[3], string.format('w %.0f %.0f ', count, born))
end
return { now, born, count, place }
