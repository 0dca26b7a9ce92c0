//! The server's own limit: a referee that shares no line of code with the library that it judges.
//!
//! Time is an argument in microseconds, so that the ideal is computed by the same rules that a run is held to.

use std::collections::VecDeque;

use serde::Serialize;

/// How the server counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// So many a second on average, the burst at once.
    TokenBucket,
    /// So many in each second, counted from the first request on.
    FixedWindow,
    /// So many in any second.
    SlidingLog,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::TokenBucket, Self::FixedWindow, Self::SlidingLog];

    pub(crate) fn has_windows(self) -> bool {
        self != Self::TokenBucket
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token bucket",
            Self::FixedWindow => "fixed window",
            Self::SlidingLog => "sliding log",
        }
    }
}

const SECOND_US: u64 = 1_000_000;
/// What a log is missing after a refusal returns over so long a time, and one unit of it sooner by as much.
const RETURNS_US: u64 = SECOND_US / 32;
/// Of a bucket: so many units a second are as many millionths a microsecond.
const UNIT: i64 = 1_000_000;

/// A quota in use.
#[derive(Debug, Clone)]
pub(crate) struct Quota {
    kind: Kind,
    per_second: u64,
    burst: u64,
    /// What counts as a second: more for who leaves a margin.
    window_us: u64,
    /// Millionths of a unit that are there, or owed, and since when.
    level: i64,
    level_at: u64,
    /// When the window opened, and what went since.
    window: Option<(u64, u64)>,
    /// When each of the last second went; and of those that are missing besides, at which instant each counts.
    log: VecDeque<u64>,
    missing: VecDeque<u64>,
}

impl Quota {
    /// Unused. The burst is a bucket's.
    pub(crate) fn new(kind: Kind, per_second: u64, burst: u64) -> Self {
        let level = (burst * SECOND_US) as i64;
        let (window_us, log, missing) = (SECOND_US, VecDeque::new(), VecDeque::new());
        Self { kind, per_second, burst, window_us, level, level_at: 0, window: None, log, missing }
    }

    /// With windows that are longer by a margin.
    pub(crate) fn with_margin(self, margin_us: u64) -> Self {
        Self { window_us: SECOND_US + margin_us, ..self }
    }

    /// What is left counts as used now: of a log evenly over the last window.
    pub(crate) fn drain(&mut self, now: u64) {
        self.empty(now, now, self.window_us);
    }

    /// The same for a request that went at an instant and was refused, to come again after a wait. Of a log what is
    /// left is missing until then and returns soon; so is what was refused, up to half of all.
    pub(crate) fn refused(&mut self, now: u64, sent: u64, wait_us: u64) {
        self.has(now);
        if (self.missing.len() as u64) < self.per_second / 2
            && let Some(refused) = self.log.iter().position(|at| *at == sent)
        {
            self.log.remove(refused);
        }
        self.empty(now, now + wait_us + RETURNS_US, RETURNS_US);
        if let Some(first) = self.missing.front_mut() {
            *first = (now + wait_us).saturating_sub(self.window_us);
        }
    }

    /// What is left is missing until that instant, and returns evenly over a time.
    fn empty(&mut self, now: u64, until: u64, over_us: u64) {
        self.has(now);
        match self.kind {
            Kind::TokenBucket => self.level = self.level.min(0),
            Kind::FixedWindow => {
                let opened = self.window.map_or(now, |(opened, _)| opened);
                self.window = Some((opened, self.per_second));
            }
            Kind::SlidingLog => {
                let left = self.per_second.saturating_sub(self.log.len() as u64);
                let missing = left.max(self.missing.len() as u64);
                let counts = |i: u64| (until + over_us * i / missing).saturating_sub(self.window_us);
                self.missing = (1..=missing).map(counts).collect();
            }
        }
    }

    /// Other numbers from now on; what was used stays used.
    pub(crate) fn set_rate(&mut self, now: u64, per_second: u64) {
        self.earn(now);
        self.per_second = per_second;
    }

    /// Whether one more request may pass now.
    pub(crate) fn admit(&mut self, now: u64) -> bool {
        let has = self.has(now);
        if has {
            self.take(now);
        }
        has
    }

    /// Takes a unit that somebody else has a right to, whether one is there or not.
    pub(crate) fn take(&mut self, now: u64) {
        // Brings the state to now.
        self.has(now);
        match self.kind {
            Kind::TokenBucket => self.level -= UNIT,
            Kind::FixedWindow => {
                let (opened, used) = self.window.unwrap_or((now, 0));
                self.window = Some((opened, used + 1));
            }
            Kind::SlidingLog => self.log.push_back(now),
        }
    }

    /// Whether a unit is there now.
    fn has(&mut self, now: u64) -> bool {
        self.earn(now);
        match self.kind {
            Kind::TokenBucket => self.level >= UNIT,
            Kind::FixedWindow => {
                self.window = self.window.filter(|(opened, _)| now < opened + self.window_us);
                self.window.is_none_or(|(_, used)| used < self.per_second)
            }
            Kind::SlidingLog => {
                for counted in [&mut self.log, &mut self.missing] {
                    while counted.front().is_some_and(|first| first + self.window_us <= now) {
                        counted.pop_front();
                    }
                }
                ((self.log.len() + self.missing.len()) as u64) < self.per_second
            }
        }
    }

    fn earn(&mut self, now: u64) {
        let earned = now.saturating_sub(self.level_at) * self.per_second;
        self.level = (self.level + earned as i64).min((self.burst * SECOND_US) as i64);
        self.level_at = self.level_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(quota: &mut Quota, at: u64, asks: u64) -> u64 {
        (0..asks).filter(|_| quota.admit(at)).count() as u64
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let mut quota = Quota::new(Kind::TokenBucket, 200, 20);
        assert_eq!(admitted(&mut quota, 0, 30), 20);
        assert_eq!(admitted(&mut quota, 4_999, 2), 0);
        assert_eq!(admitted(&mut quota, 5_000, 2), 1);
        assert_eq!(admitted(&mut quota, 10_000_000, 30), 20);
    }

    #[test]
    fn a_window_opens_with_a_request() {
        let mut quota = Quota::new(Kind::FixedWindow, 200, 20);
        assert_eq!(admitted(&mut quota, 400_000, 300), 200);
        assert_eq!(admitted(&mut quota, 1_399_999, 1), 0);
        assert_eq!(admitted(&mut quota, 1_400_000, 300), 200);
    }

    #[test]
    fn a_log_gives_back_one_by_one() {
        let mut quota = Quota::new(Kind::SlidingLog, 2, 0);
        assert_eq!(
            [0, 300_000, 999_999, 1_000_000, 1_000_001].map(|at| quota.admit(at)),
            [true, true, false, true, false]
        );
        assert!(quota.admit(1_300_000));
    }

    #[test]
    fn a_log_that_was_refused_lacks_what_it_had_left_until_the_wait_is_over() {
        let mut quota = Quota::new(Kind::SlidingLog, 4, 0);
        assert_eq!(admitted(&mut quota, 0, 3), 3);
        // One of the three was refused, so two are missing.
        quota.refused(100_000, 0, 1_000_000);
        assert_eq!(admitted(&mut quota, 999_999, 1), 0);
        assert_eq!(admitted(&mut quota, 1_000_000, 9), 2);
        let times = [1_099_999, 1_100_000, 1_162_499, 1_162_500];
        assert_eq!(times.map(|at| admitted(&mut quota, at, 9)), [0, 1, 0, 1]);
    }

    #[test]
    fn half_a_rate_earns_half() {
        let mut quota = Quota::new(Kind::TokenBucket, 200, 20);
        assert_eq!(admitted(&mut quota, 0, 20), 20);
        quota.set_rate(0, 100);
        assert_eq!(admitted(&mut quota, 10_000, 5), 1);
    }
}
