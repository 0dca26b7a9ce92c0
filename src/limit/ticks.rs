//! A rate in whole numbers small enough for a double: what a unit costs and what a microsecond repays.
//!
//! Buckets count in these, so that no remainder is ever thrown away. Where the exact numbers are too large
//! the nearest slower ones serve, as long as the difference stays below what any clock could tell. Never
//! faster than the rate that was asked for.

use super::MAX_EXACT;

/// A rate in ticks: one unit is `p` ticks, a microsecond repays `r`; p/r is period/units, reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks {
    pub(crate) p: u64,
    pub(crate) r: u64,
}

impl Ticks {
    /// `units` in each `period_us`, with room for `most` units in one state. Where the exact form leaves the
    /// range it is the nearest one below, at most one part in a million slower.
    pub(crate) fn new(units: u64, period_us: u64, most: u64) -> Option<Self> {
        let divisor = gcd(units, period_us);
        let exact = Self { p: period_us / divisor, r: units / divisor };
        // A quarter of the range: a sum of two debts and one repayment stays inside it.
        let (p_max, r_max) = (MAX_EXACT / 4 / most.max(1), MAX_EXACT / 4);
        if exact.p <= p_max && exact.r <= r_max {
            return Some(exact);
        }
        let near = exact.below(p_max, r_max)?;
        let (slow, fast) =
            (u128::from(near.r) * u128::from(exact.p), u128::from(exact.r) * u128::from(near.p));
        ((fast - slow) * 1_000_000 <= fast).then_some(near)
    }

    /// The same for a rate that has to be taken whatever its numbers: where nothing near fits, the slowest that
    /// does.
    #[cfg(feature = "redis")]
    pub(crate) fn at_most(units: u64, period_us: u64, most: u64) -> Self {
        let p_max = MAX_EXACT / 4 / most.max(1);
        Self::new(units, period_us, most).unwrap_or(Self { p: p_max, r: (p_max * units / period_us).max(1) })
    }

    /// The largest r/p not above this one with `p <= p_max` and `r <= r_max`, by descent of the
    /// Stern-Brocot tree in whole runs.
    fn below(self, p_max: u64, r_max: u64) -> Option<Self> {
        let (x_r, x_p) = (u128::from(self.r), u128::from(self.p));
        let (p_max, r_max) = (u128::from(p_max), u128::from(r_max));
        let (mut low_r, mut low_p, mut high_r, mut high_p) = (0_u128, 1_u128, 1_u128, 0_u128);
        loop {
            let (over, under) = (high_r * x_p - x_r * high_p, x_r * low_p - low_r * x_p);
            let mut up = under / over;
            if let Some(room) = p_max.saturating_sub(low_p).checked_div(high_p) {
                up = up.min(room);
            }
            up = up.min(r_max.saturating_sub(low_r) / high_r);
            (low_r, low_p) = (low_r + up * high_r, low_p + up * high_p);
            let under = x_r * low_p - low_r * x_p;
            let down = (over - 1).checked_div(under).unwrap_or(0);
            (high_r, high_p) = (high_r + down * low_r, high_p + down * low_p);
            let room = low_p + high_p <= p_max && low_r + high_r <= r_max;
            if under == 0 || !room || (up == 0 && down == 0) {
                break;
            }
        }
        (low_r > 0 && low_p <= p_max).then_some(Self { p: low_p as u64, r: low_r as u64 })
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
