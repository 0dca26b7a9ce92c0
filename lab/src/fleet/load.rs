//! The job and what happens during it: who has the calls, what clients believe, what the server does.

use serde::Serialize;

use super::quota::{Kind, Quota};

/// Clients of the fleet; tasks of each.
pub(crate) const CLIENTS: usize = 8;
pub(crate) const TASKS: usize = 16;
/// What the server allows.
pub(crate) const PER_SECOND: u64 = 200;
pub(crate) const BURST: u64 = 20;
/// What the server says with a 429.
pub(crate) const RETRY_AFTER_US: u64 = 1_000_000;

/// When the quota is cut by half, and until when.
const HALVED_US: std::ops::Range<u64> = 2_000_000..12_000_000;
/// Requests a second of the neighbour: 30 % of the quota.
const NEIGHBOUR: u64 = PER_SECOND * 3 / 10;
/// How finely the ideal is computed.
pub(super) const STEP_US: u64 = 100;

/// What is special about a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// Each client has as many calls.
    Even,
    /// All calls on two of the eight.
    TwoOfEight,
    /// For ten seconds the server allows half, and tells nobody.
    Halved,
    /// Each client believes in twice what the server allows.
    TwiceTheLimit,
    /// Somebody else takes 30 % of the same quota.
    Neighbour,
    /// A client that sends before its Retry-After is over is refused everything for a second.
    Banning,
}

impl Load {
    pub(crate) const ALL: [Self; 6] =
        [Self::Even, Self::TwoOfEight, Self::Halved, Self::TwiceTheLimit, Self::Neighbour, Self::Banning];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::TwoOfEight => "all on 2 of 8",
            Self::Halved => "quota halved for 10 s",
            Self::TwiceTheLimit => "believes in twice the limit",
            Self::Neighbour => "a neighbour takes 30 %",
            Self::Banning => "early retries are banned",
        }
    }

    /// Whether what clients are told of the quota is true, and all of the quota is theirs.
    pub(crate) fn is_known(self) -> bool {
        matches!(self, Self::Even | Self::TwoOfEight | Self::Banning)
    }

    /// How many of all calls a client has.
    pub(crate) fn calls_of(self, client: usize, calls: u32) -> u32 {
        match self {
            Self::TwoOfEight if client < 2 => calls / 2,
            Self::TwoOfEight => 0,
            _ => calls / CLIENTS as u32,
        }
    }

    /// Requests a second that clients believe in, and at once.
    pub(crate) fn belief(self) -> (u64, u64) {
        match self {
            Self::TwiceTheLimit => (2 * PER_SECOND, 2 * BURST),
            _ => (PER_SECOND, BURST),
        }
    }

    /// What the server allows a second at an instant.
    pub(crate) fn allowed(self, now: u64) -> u64 {
        if self == Self::Halved && HALVED_US.contains(&now) { PER_SECOND / 2 } else { PER_SECOND }
    }

    /// How far apart somebody else's requests are.
    pub(crate) fn neighbour_every_us(self) -> Option<u64> {
        (self == Self::Neighbour).then_some(1_000_000 / NEIGHBOUR)
    }

    /// The least time in which the server lets so many calls through: whoever asks without end gets each
    /// unit as soon as it is there.
    pub(crate) fn ideal_us(self, kind: Kind, calls: u32) -> u64 {
        let mut quota = Quota::new(kind, PER_SECOND, BURST);
        let (mut now, mut left, mut neighbour) = (0, calls, 0);
        loop {
            quota.set_rate(now, self.allowed(now));
            if let Some(every_us) = self.neighbour_every_us() {
                while neighbour <= now {
                    quota.take(now);
                    neighbour += every_us;
                }
            }
            while left > 0 && quota.admit(now) {
                left -= 1;
            }
            if left == 0 {
                return now.max(1);
            }
            now += STEP_US;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_is_what_the_numbers_say() {
        let ideal = |load: Load, kind| load.ideal_us(kind, 2_000);
        assert_eq!(ideal(Load::Even, Kind::TokenBucket), 9_900_000);
        // Ten windows, the last of which needs no time.
        assert_eq!(ideal(Load::Even, Kind::FixedWindow), 9_000_000);
        assert_eq!(ideal(Load::Even, Kind::SlidingLog), 9_000_000);
        // 420 in two seconds, 1000 in ten, 580 in 2.9.
        assert_eq!(ideal(Load::Halved, Kind::TokenBucket), 14_900_000);
        // All but the neighbour's.
        let shared = ideal(Load::Neighbour, Kind::TokenBucket);
        assert!((14_100_000..14_200_000).contains(&shared), "{shared}");
    }

    #[test]
    fn every_call_is_somebodys() {
        for load in Load::ALL {
            assert_eq!((0..CLIENTS).map(|client| load.calls_of(client, 2_000)).sum::<u32>(), 2_000);
        }
    }
}
