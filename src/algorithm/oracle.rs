//! The token bucket against governor's, another hand's text of the same arithmetic: on random walks both
//! admit the same calls. Only for rates whose cell takes whole microseconds, for governor counts in whole
//! nanoseconds and we in exact fractions.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use proptest::prelude::*;

use super::Rule;
use super::properties::walks;
use crate::limit::{Limit, Margin};

/// The clock's first instant: what the limiter's is when a process starts.
const START: u64 = 1 << 50;

/// A quota, and a walk of steps: time passes, then so many cells are asked for. Times are near the
/// cell's, so that budgets run out and come back.
fn walk() -> impl Strategy<Value = (u64, u32, Vec<(u64, u32)>)> {
    (1_u64..2_000_000, 1_u32..60).prop_flat_map(|(cell_us, burst)| {
        let passes = prop_oneof![
            3 => Just(0),
            3 => 0..=cell_us,
            2 => Just(cell_us),
            1 => 0..=cell_us * u64::from(burst) * 2,
        ];
        let cells = prop_oneof![3 => Just(1), 1 => 1..=burst];
        (Just(cell_us), Just(burst), prop::collection::vec((passes, cells), 1..120))
    })
}

proptest! {
    #![proptest_config(walks())]

    #[test]
    fn a_token_bucket_admits_what_governors_does((cell_us, burst, steps) in walk()) {
        let burst = NonZeroU32::new(burst).expect("at least one");
        let cell = Quota::with_period(Duration::from_micros(cell_us)).expect("above zero").allow_burst(burst);
        let clock = FakeRelativeClock::default();
        let theirs = RateLimiter::direct_with_clock(cell, clock.clone());
        let ours = Rule::new(&Limit::from(cell), Margin::None).expect("whole microseconds");
        let (mut state, mut now) = (ours.fresh(), START);
        for (i, (passes, cells)) in steps.into_iter().enumerate() {
            clock.advance(Duration::from_micros(passes));
            now += passes;
            let asked = NonZeroU32::new(cells).expect("at least one");
            let admits = ours.earliest(&state, now, u64::from(cells)) == now;
            prop_assert_eq!(theirs.check_n(asked).expect("within the burst").is_ok(), admits, "step {}", i);
            if admits {
                ours.commit(&mut state, now, u64::from(cells));
            }
        }
    }
}
