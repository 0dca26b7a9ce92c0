//! What is remembered of the throttling answers of a key: whether a 429 is a lone one or one of several, and how
//! often this process had to hold the key without being told for how long.
//!
//! A 429 is hard if the service asks for more than a second, or if the answer before it was one too and the
//! call was sent after that was known. A hard one pauses the key, a soft one only empties its budgets. In a fleet
//! the answer before is the last that any worker is known to have had: of one worker's own answers, a few of all,
//! two in a row say little. News of the others takes its time, so there a row must have lasted, too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::micros;
use crate::signals::{Class, Signals};

/// A wait above this makes a 429 hard.
const SOFT_WAIT: Duration = Duration::from_secs(1);
/// In a fleet, the least time from when the first 429 of a row was known to when a call was sent that proves it.
#[cfg(feature = "redis")]
pub(crate) const ROW_US: u64 = 100_000;
/// A hard pause for which the service named no time, doubling from the first to the second.
const UNTOLD_US: (u64, u64) = (500_000, 30_000_000);
/// A key is forgotten when its last 429 is older.
const FORGET_US: u64 = 2 * 3_600_000_000;

/// The keys whose last answers were not all well.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    keys: Mutex<HashMap<Box<str>, Throttled>>,
    len: AtomicUsize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Throttled {
    /// When the last 429 was known.
    known: u64,
    /// Whether the last answer was a 429, and when the first one of that row was known.
    last: bool,
    since: u64,
    /// Pauses since the last success that were hard, and when the newest began.
    episodes: u32,
    began: u64,
}

/// What an answer means for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Nothing,
    /// A call that was sent at this instant did well: a pause that it probed is over.
    Well { sent: u64 },
    /// A soft 429: nothing stays saved up.
    Drain,
    /// A hard 429: the key is held until this instant.
    Pause { until: u64 },
}

impl Answers {
    /// Whether an answer may mean anything for its key.
    pub(crate) fn concerns(&self, signals: &Signals) -> bool {
        signals.class() == Class::Throttle || self.len.load(Ordering::Relaxed) > 0
    }

    /// What an answer to this process means, where a row must have lasted for `row_us`.
    pub(crate) fn judge(&self, key: &str, signals: &Signals, row_us: u64, now: u64) -> Verdict {
        let received = signals.received.map_or(now, crate::clock::at_us);
        let sent = signals.sent.map(crate::clock::at_us);
        match signals.class() {
            // An account that is used up says nothing of the others under its key.
            Class::Throttle if signals.should_retry() == Some(false) && signals.wait().is_none() => {
                Verdict::Nothing
            }
            Class::Throttle => self.throttled(key, signals.wait(), row_us, sent, received),
            _ if self.len.load(Ordering::Relaxed) == 0 => Verdict::Nothing,
            Class::Transient => {
                if let Some(throttled) = self.keys.lock().get_mut(key) {
                    throttled.last = false;
                }
                Verdict::Nothing
            }
            Class::None => self.well(key, sent.unwrap_or(received)),
        }
    }

    /// Another worker of the fleet was answered with a 429.
    #[cfg(feature = "redis")]
    pub(crate) fn throttled_elsewhere(&self, key: &str, now: u64) {
        self.with(key, now, |throttled| throttled.again(now));
    }

    /// A call of another worker, sent at this instant, did well.
    #[cfg(feature = "redis")]
    pub(crate) fn well_elsewhere(&self, key: &str, sent: u64) {
        self.well(key, sent);
    }

    fn well(&self, key: &str, sent: u64) -> Verdict {
        let mut keys = self.keys.lock();
        match keys.get_mut(key) {
            Some(throttled) if sent > throttled.known => {
                keys.remove(key);
                self.len.store(keys.len(), Ordering::Relaxed);
                Verdict::Well { sent }
            }
            Some(throttled) => {
                throttled.last = false;
                Verdict::Nothing
            }
            None => Verdict::Nothing,
        }
    }

    fn throttled(
        &self,
        key: &str,
        wait: Option<Duration>,
        row_us: u64,
        sent: Option<u64>,
        received: u64,
    ) -> Verdict {
        let wait = wait.filter(|wait| !wait.is_zero());
        self.with(key, received, |throttled| {
            // Without a stamp the call counts as sent after what was known.
            let again = throttled.last
                && sent.is_none_or(|sent| sent > throttled.known)
                && sent.unwrap_or(received) >= throttled.since + row_us;
            let of_this_episode = throttled.began > 0 && sent.is_some_and(|sent| sent <= throttled.began);
            let hard = again || wait.is_some_and(|wait| wait > SOFT_WAIT);
            throttled.again(received);
            if !hard {
                return Verdict::Drain;
            }
            if !of_this_episode {
                throttled.episodes += 1;
                throttled.began = received;
            }
            let untold = UNTOLD_US.0 << (throttled.episodes - 1).min(16);
            Verdict::Pause { until: received + wait.map_or(untold.min(UNTOLD_US.1), micros) }
        })
    }

    /// A key that was answered with a 429.
    fn with<R>(&self, key: &str, now: u64, then: impl FnOnce(&mut Throttled) -> R) -> R {
        let mut keys = self.keys.lock();
        if !keys.contains_key(key) {
            if keys.len() == keys.capacity() {
                keys.retain(|_, throttled| throttled.known + FORGET_US > now);
            }
            keys.insert(key.into(), Throttled::default());
            self.len.store(keys.len(), Ordering::Relaxed);
        }
        then(keys.get_mut(key).expect("it was just inserted"))
    }
}

impl Throttled {
    /// One more 429 was known at this instant.
    fn again(&mut self, now: u64) {
        if !self.last {
            (self.last, self.since) = (true, now);
        }
        self.known = self.known.max(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::{HeaderMap, HeaderValue, StatusCode};
    use tokio::time::Instant;

    use super::*;
    use crate::clock::at_us;

    /// Answers of one key, with stamps in milliseconds from the first.
    struct Story {
        answers: Answers,
        start: Instant,
        row_us: u64,
    }

    impl Story {
        fn new() -> Self {
            Self { answers: Answers::default(), start: Instant::now(), row_us: 0 }
        }

        #[cfg(feature = "redis")]
        fn of_a_fleet() -> Self {
            Self { row_us: ROW_US, ..Self::new() }
        }

        fn us(&self, at: u64) -> u64 {
            at_us(self.start + Duration::from_millis(at))
        }

        fn answer(
            &self,
            status: u16,
            retry_after: Option<&'static str>,
            sent: u64,
            received: u64,
        ) -> Verdict {
            let mut headers = HeaderMap::new();
            if let Some(wait) = retry_after {
                headers.insert("retry-after", HeaderValue::from_static(wait));
            }
            let status = StatusCode::from_u16(status).expect("a status");
            let mut signals = Signals::read(status, &headers, SystemTime::UNIX_EPOCH);
            signals.sent = Some(self.start + Duration::from_millis(sent));
            signals.received = Some(self.start + Duration::from_millis(received));
            self.answers.judge("k", &signals, self.row_us, self.us(received))
        }

        fn pause(&self, until: u64) -> Verdict {
            Verdict::Pause { until: self.us(until) }
        }
    }

    #[test]
    fn a_lone_429_is_soft() {
        let story = Story::new();
        assert_eq!(story.answer(429, None, 0, 10), Verdict::Drain);
        assert_eq!(story.answer(429, Some("1"), 5, 11), Verdict::Drain, "sent before the first was known");
        assert_eq!(story.answer(429, Some("1"), 10, 12), Verdict::Drain, "sent at that instant");
    }

    #[test]
    fn one_that_asks_for_more_than_a_second_is_hard() {
        let story = Story::new();
        assert_eq!(story.answer(429, Some("2"), 0, 10), story.pause(2_010));
    }

    #[test]
    fn one_sent_after_the_last_was_known_is_hard() {
        let story = Story::new();
        assert_eq!(story.answer(429, None, 0, 10), Verdict::Drain);
        assert_eq!(story.answer(429, Some("1"), 11, 20), story.pause(1_020));
        assert_eq!(story.answer(429, None, 21, 30), story.pause(30 + 1_000), "the second episode");
    }

    #[test]
    fn sends_that_began_before_a_pause_belong_to_its_episode() {
        let story = Story::new();
        story.answer(429, None, 0, 10);
        assert_eq!(story.answer(429, None, 11, 20), story.pause(520));
        for received in 21..30 {
            let verdict = story.answer(429, None, 12, received);
            assert_eq!(verdict, Verdict::Drain, "sent before the newest was known, so soft");
        }
        assert_eq!(story.answer(429, Some("3"), 15, 31), story.pause(3_031));
        assert_eq!(story.answer(429, None, 600, 610), story.pause(1_610), "doubled once, not ten times");
    }

    #[test]
    fn doubling_stops_at_half_a_minute() {
        let story = Story::new();
        story.answer(429, None, 0, 10);
        let mut at = 10;
        for wait in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000] {
            at += wait + 100;
            assert_eq!(story.answer(429, None, at - 1, at), story.pause(at + wait));
        }
    }

    #[test]
    fn a_success_sent_later_forgets_all() {
        let story = Story::new();
        story.answer(429, None, 0, 10);
        assert_eq!(story.answer(429, None, 11, 20), story.pause(520));
        let sent = story.us(21);
        assert_eq!(story.answer(200, None, 21, 30), Verdict::Well { sent });
        assert_eq!(story.answer(200, None, 31, 40), Verdict::Nothing);
        assert_eq!(story.answer(429, None, 41, 50), Verdict::Drain);
        assert_eq!(story.answer(429, None, 51, 60), story.pause(560));
    }

    #[test]
    fn a_success_sent_before_ends_the_row_and_forgets_nothing() {
        let story = Story::new();
        story.answer(429, None, 0, 10);
        assert_eq!(story.answer(429, None, 11, 20), story.pause(520));
        assert_eq!(story.answer(200, None, 5, 21), Verdict::Nothing);
        assert_eq!(story.answer(429, None, 600, 610), Verdict::Drain, "the answer before it was no 429");
        assert_eq!(story.answer(429, None, 611, 620), story.pause(1_620), "still the second episode");
    }

    #[test]
    fn a_fault_ends_the_row_too() {
        let story = Story::new();
        story.answer(429, None, 0, 10);
        assert_eq!(story.answer(500, None, 11, 20), Verdict::Nothing);
        assert_eq!(story.answer(429, None, 21, 30), Verdict::Drain);
    }

    #[cfg(feature = "redis")]
    #[test]
    fn in_a_fleet_a_row_must_have_lasted() {
        let story = Story::of_a_fleet();
        assert_eq!(story.answer(429, Some("1"), 0, 10), Verdict::Drain);
        assert_eq!(
            story.answer(429, Some("1"), 50, 60),
            Verdict::Drain,
            "news of a success may be on its way"
        );
        assert_eq!(story.answer(429, Some("1"), 109, 115), Verdict::Drain, "not quite a tenth of a second");
        assert_eq!(story.answer(429, Some("1"), 116, 120), story.pause(1_120));
        assert_eq!(story.answer(429, Some("1"), 1_121, 1_125), story.pause(2_125), "the row goes on");
        assert_eq!(story.answer(429, Some("2"), 0, 2_000), story.pause(4_000), "a long wait is hard at once");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn in_a_fleet_a_429_of_another_worker_begins_the_row() {
        let story = Story::of_a_fleet();
        story.answers.throttled_elsewhere("k", story.us(10));
        assert_eq!(story.answer(429, None, 5, 12), Verdict::Drain, "sent before that was known");
        assert_eq!(story.answer(429, None, 110, 120), story.pause(620));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn in_a_fleet_a_success_of_another_worker_ends_the_row() {
        let story = Story::of_a_fleet();
        assert_eq!(story.answer(429, None, 0, 10), Verdict::Drain);
        story.answers.well_elsewhere("k", story.us(60));
        assert_eq!(story.answer(429, None, 120, 130), Verdict::Drain);
        assert_eq!(
            story.answer(429, None, 230, 240),
            story.pause(740),
            "all refused for a tenth of a second"
        );
        story.answers.well_elsewhere("k", story.us(235));
        assert_eq!(story.answer(429, None, 800, 810), Verdict::Drain);
        assert_eq!(
            story.answer(429, None, 911, 920),
            story.pause(1_920),
            "it was sent before: the second episode"
        );
        story.answers.well_elsewhere("other", story.us(2_000));
        story.answers.well_elsewhere("k", story.us(2_000));
        assert!(story.answers.keys.lock().is_empty());
    }

    /// Eight workers, of whom a random one sends every five milliseconds and is answered with this; how many 429s
    /// there were before the first hard one, if there was one.
    #[cfg(feature = "redis")]
    fn of_eight(seed: u64, status: impl Fn(u64) -> u16) -> Option<u64> {
        let workers = [(); 8].map(|()| Story::of_a_fleet());
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut soft = 0;
        for call in 0..2_000 {
            let (own, sent) = (rng.usize(0..8), 5 * call);
            let others = workers.iter().enumerate().filter(|(i, _)| *i != own).map(|(_, other)| other);
            match workers[own].answer(status(call), Some("1"), sent, sent + 2) {
                Verdict::Pause { .. } => return Some(soft),
                Verdict::Drain => {
                    others.for_each(|other| other.answers.throttled_elsewhere("k", other.us(sent + 3)));
                    soft += 1;
                }
                Verdict::Well { .. } => {
                    others.for_each(|other| other.answers.well_elsewhere("k", other.us(sent)))
                }
                Verdict::Nothing => {}
            }
        }
        None
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_service_that_refuses_a_part_never_holds_a_fleet_and_one_that_refuses_all_does() {
        for seed in 0..20 {
            assert_eq!(of_eight(seed, |call| if call % 2 == 0 { 200 } else { 429 }), None);
            assert_eq!(of_eight(seed, |call| if call % 10 == 0 { 200 } else { 429 }), None);
            assert_eq!(of_eight(seed, |_| 429), Some(21), "those of the first tenth of a second");
        }
    }

    #[test]
    fn however_long_it_asks_nothing_overflows() {
        let story = Story::new();
        for wait in ["18446744073709551615", "99999999999999999999999999"] {
            let Verdict::Pause { until } = story.answer(429, Some(wait), 0, 10) else { panic!("{wait}") };
            assert!(until > story.us(0) + 365 * 86_400_000_000);
        }
    }

    #[test]
    fn keys_are_forgotten_in_time() {
        let story = Story::new();
        for i in 0..10_000 {
            let signals =
                Signals::read(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new(), SystemTime::UNIX_EPOCH);
            story.answers.judge(&i.to_string(), &signals, 0, crate::clock::now_us() + i * 60_000_000);
        }
        assert!(story.answers.keys.lock().len() < 1_000);
    }
}
