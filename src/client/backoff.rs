//! When: how long to wait before a call is sent again.
//!
//! Pure arithmetic. Randomness comes in as a generator that the caller seeded, nothing overflows, and no
//! wait that a service asked for is ever made shorter: jitter on it only adds.

use std::time::Duration;

use fastrand::Rng;

/// No backoff is shorter, whatever was set: a wait of nothing, doubled, stays nothing.
const SHORTEST: Duration = Duration::from_millis(1);

/// A wait that doubles with each fault of a call, up to a longest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    jitter: Jitter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Jitter {
    Random,
    None,
}

impl Backoff {
    /// Waits `first` after the first fault (a millisecond at least), twice that after the second, and so
    /// on up to `longest`, with jitter: see [`Retry::backoff`](crate::Retry::backoff) and
    /// [`Retry::throttle_backoff`](crate::Retry::throttle_backoff).
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, jitter: Jitter::Random }
    }

    /// Takes the jitter off: each wait is exactly its step. Many callers of one service then come back in
    /// step with each other.
    pub const fn without_jitter(mut self) -> Self {
        self.jitter = Jitter::None;
        self
    }

    /// The wait after fault number `n`, counted from 1, before jitter.
    pub fn step(&self, n: u32) -> Duration {
        self.doubled(n).min(self.longest())
    }

    fn longest(&self) -> Duration {
        self.longest.max(SHORTEST)
    }

    fn doubled(&self, n: u32) -> Duration {
        let factor = 1_u32.checked_shl(n.saturating_sub(1));
        factor.and_then(|factor| self.first.max(SHORTEST).checked_mul(factor)).unwrap_or(Duration::MAX)
    }

    /// After a transient fault: anywhere from nothing to the step, which spreads callers best.
    pub(crate) fn after_transient(&self, n: u32, rng: &mut Rng) -> Duration {
        self.least_after_transient(n).max(random_up_to(self.step(n), rng))
    }

    pub(crate) fn least_after_transient(&self, n: u32) -> Duration {
        match self.jitter {
            Jitter::Random => Duration::ZERO,
            Jitter::None => self.step(n),
        }
    }

    /// After a throttle: the step, and up to half of it more within the longest wait. A service that is out of budget
    /// gets at least the step; jitter down to nothing would be the next call too early.
    pub(crate) fn after_throttle(&self, n: u32, rng: &mut Rng) -> Duration {
        let least = self.least_after_throttle(n);
        match self.jitter {
            Jitter::Random => least + random_up_to((self.step(n) / 2).min(self.longest() - least), rng),
            Jitter::None => least,
        }
    }

    /// Where the steps would be longer than the longest wait, the last third of that is jitter: else all would come
    /// back in step with each other for ever.
    pub(crate) fn least_after_throttle(&self, n: u32) -> Duration {
        match self.jitter {
            Jitter::Random if self.doubled(n) > self.longest() => (self.longest() / 3 * 2).max(SHORTEST),
            _ => self.step(n),
        }
    }
}

/// What is added to a wait that the service asked for, so that its callers do not all return at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) share: f64,
    pub(crate) most: Duration,
}

impl Spread {
    pub(crate) const NONE: Self = Self { share: 0.0, most: Duration::ZERO };
    pub(crate) const USUAL: Self = Self { share: 0.1, most: Duration::from_secs(5) };

    pub(crate) fn of(&self, wait: Duration, rng: &mut Rng) -> Duration {
        let share = if self.share.is_finite() { self.share.clamp(0.0, 100.0) } else { 0.0 };
        let span = Duration::try_from_secs_f64(wait.as_secs_f64() * share).unwrap_or(Duration::MAX);
        random_up_to(span.min(self.most), rng)
    }
}

fn random_up_to(span: Duration, rng: &mut Rng) -> Duration {
    let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(rng.u64(0..=us))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn b040_grows_to_the_longest_and_stays() {
        let backoff = Backoff::new(2 * SEC, 300 * SEC);
        let mut before = Duration::ZERO;
        for n in 1..=10_000 {
            let step = backoff.step(n);
            assert!(step >= before && step <= 300 * SEC, "step {n} is {step:?}");
            before = step;
        }
        assert_eq!(backoff.step(1), 2 * SEC);
        assert_eq!(backoff.step(3), 8 * SEC);
        assert_eq!(backoff.step(10_000), 300 * SEC);
        assert_eq!(backoff.step(u32::MAX), 300 * SEC);
        assert_eq!(Backoff::new(Duration::MAX, Duration::MAX).step(40), Duration::MAX);
    }

    #[test]
    fn b040_jitter_on_an_endless_step_does_not_overflow() {
        let mut rng = Rng::with_seed(3);
        let backoff = Backoff::new(SEC, Duration::MAX);
        for n in [1, 32, 33, 10_000, u32::MAX] {
            assert!(backoff.after_throttle(n, &mut rng) >= backoff.step(n) / 3 * 2);
            assert!(backoff.after_transient(n, &mut rng) <= backoff.step(n));
        }
    }

    #[test]
    fn b001_no_step_is_nothing() {
        let backoff = Backoff::new(Duration::ZERO, Duration::ZERO);
        assert_eq!(backoff.step(1), SHORTEST);
        assert_eq!(backoff.after_throttle(9, &mut Rng::with_seed(1)), SHORTEST);
    }

    #[test]
    fn b064_throttles_never_undercut_the_step() {
        for seed in 0..1_000 {
            let mut rng = Rng::with_seed(seed);
            let wait = Backoff::new(SEC / 2, 30 * SEC).after_throttle(1, &mut rng);
            assert!((SEC / 2..=SEC * 3 / 4).contains(&wait), "{wait:?}");
            assert!(Backoff::new(SEC / 2, 30 * SEC).after_throttle(8, &mut rng) <= 30 * SEC);
        }
    }

    #[test]
    fn the_longest_wait_has_jitter_too() {
        let waits = (0..100).map(|seed| Backoff::new(SEC, SEC).after_throttle(9, &mut Rng::with_seed(seed)));
        let waits = waits.collect::<std::collections::BTreeSet<_>>();
        assert!(waits.len() > 90, "{waits:?}");
        assert!(waits.iter().all(|wait| (SEC * 2 / 3 - SHORTEST..=SEC).contains(wait)), "{waits:?}");
    }

    #[test]
    fn b019_spread_is_bounded_and_takes_any_number() {
        let mut rng = Rng::with_seed(7);
        let spread = Spread { share: 0.1, most: 5 * SEC };
        for _ in 0..1_000 {
            assert!(spread.of(SEC, &mut rng) <= SEC / 10);
            assert!(spread.of(100 * SEC, &mut rng) <= 5 * SEC);
            assert!(spread.of(Duration::MAX, &mut rng) <= 5 * SEC);
        }
        for share in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            assert_eq!(Spread { share, most: SEC }.of(SEC, &mut rng), Duration::ZERO);
        }
    }
}
