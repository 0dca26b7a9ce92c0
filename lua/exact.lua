-- Arithmetic that stays exact in a double: every number here is whole and below 2^53.
--
-- Quotients of such numbers round to the right side when they are floored or ceiled; products need not, so what
-- Rust does in 128 bits is a long division here. Nothing may turn a number into text but `text`: Lua's own
-- conversion keeps fourteen digits.

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local pack, unpack_from = struct.pack, struct.unpack
local EXACT = 9007199254740991
local QUARTER = 2251799813685247

local function text(number)
  return string.format('%.0f', number)
end

-- a - b, never below zero.
local function less(a, b)
  if a > b then return a - b else return 0 end
end

-- a * b / c rounded down, and what remains.
local function multiply_divide(a, b, c)
  local product = a * b
  if product <= EXACT then
    local quotient = floor(product / c)
    return quotient, product - quotient * c
  end
  local whole = floor(a / c)
  a = a - whole * c
  -- Digits of b as large as leave a digit times c inside the range.
  local base = 2
  while base * 2 * c <= EXACT / 2 do base = base * 2 end
  local digits = {}
  local rest = b
  while rest > 0 do
    digits[#digits + 1] = rest % base
    rest = floor(rest / base)
  end
  local quotient, remainder = 0, 0
  for i = #digits, 1, -1 do
    remainder = remainder * base
    local part = floor(remainder / c)
    quotient = quotient * base + part
    remainder = remainder - part * c + digits[i] * a
    part = floor(remainder / c)
    quotient = quotient + part
    remainder = remainder - part * c
  end
  return whole * b + quotient, remainder
end

-- The same, rounded up.
local function multiply_divide_up(a, b, c)
  local quotient, remainder = multiply_divide(a, b, c)
  if remainder > 0 then return quotient + 1 else return quotient end
end
