//! What is remembered of the throttling answers of a key: whether a 429 is a lone one or one of several, and how
//! often this process had to hold the key without being told for how long.
//!
//! A 429 is hard if the service asks for more than a second, or if the answer before it was one too and the
//! call was sent after that was known. A hard one pauses the key, a soft one only empties its budgets. In a fleet
//! the answer before is the last that any worker is known to have had: of one worker's own answers, a few of all,
//! two in a row say little. News takes its time and calls overlap, so there the call must have been sent a tenth of a
//! second after another refused one, itself sent after the first of the row was known: while no call goes, nothing is
//! shown.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::micros;
use crate::signals::{Class, Signals};

/// A wait above this makes a 429 hard.
const SOFT_WAIT: Duration = Duration::from_secs(1);
/// In a fleet, the least time between two refused calls, both sent after the first 429 of a row was known, that prove
/// it.
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
    /// Whether the last answer was a 429; when the first one of that row was known, and when the first call was sent
    /// from then on that was refused.
    last: bool,
    since: u64,
    went_on: Option<u64>,
    /// Pauses since the last success that were hard, and when the newest began.
    episodes: u32,
    began: u64,
}

/// What an answer means for its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Nothing,
    /// A call that was sent at this instant did well: a pause that it probed is over, and so is any row.
    Well { sent: u64 },
    /// A soft 429 to a call that was sent at this instant, with the wait that it asks for: nothing stays saved up.
    Drain { sent: u64, wait_us: u64 },
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
            Class::None => self.well(key, sent.unwrap_or(received), row_us),
        }
    }

    /// What the last answers of a key meant is heeded from now on.
    pub(crate) fn known(&self, key: &str, now: u64) {
        if let Some(throttled) = self.keys.lock().get_mut(key) {
            throttled.known = throttled.known.max(now);
        }
    }

    /// Another worker of the fleet was answered with a 429 to a call that was sent at this instant, or sooner by what
    /// the news took.
    #[cfg(feature = "redis")]
    pub(crate) fn throttled_elsewhere(&self, key: &str, sent: u64, now: u64) {
        self.with(key, now, |throttled| throttled.again(sent, sent.saturating_sub(ROW_US), now));
    }

    /// A call of another worker did well, sent at this instant or sooner by what the news took.
    #[cfg(feature = "redis")]
    pub(crate) fn well_elsewhere(&self, key: &str, sent: u64) {
        self.well(key, sent.saturating_sub(ROW_US), ROW_US);
    }

    fn well(&self, key: &str, sent: u64, row_us: u64) -> Verdict {
        let mut keys = self.keys.lock();
        let Some(throttled) = keys.get_mut(key) else { return Verdict::Nothing };
        let (ended, paused) = (std::mem::take(&mut throttled.last), throttled.episodes > 0);
        let is_later = sent > throttled.known;
        if is_later {
            keys.remove(key);
            self.len.store(keys.len(), Ordering::Relaxed);
        }
        // Others of a fleet count on with the row until they hear of its end; nothing else is news to them but the
        // end of a pause that began here.
        let is_news = if row_us > 0 { ended || (is_later && paused) } else { is_later };
        if is_news { Verdict::Well { sent } } else { Verdict::Nothing }
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
            let sent_at = sent.unwrap_or(received);
            let again = throttled.last
                && match row_us {
                    0 => sent.is_none_or(|sent| sent > throttled.known),
                    _ => throttled.went_on.is_some_and(|since| sent_at >= since + row_us),
                };
            let of_this_episode = throttled.began > 0 && sent.is_some_and(|sent| sent <= throttled.began);
            let hard = again || wait.is_some_and(|wait| wait > SOFT_WAIT);
            throttled.again(sent_at, sent_at, received);
            if !hard {
                return Verdict::Drain { sent: sent_at, wait_us: wait.map_or(0, micros) };
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
    /// One more 429 was known now, to a call that was `sent` then or sooner, but not before `earliest`.
    fn again(&mut self, sent: u64, earliest: u64, now: u64) {
        if !self.last {
            (self.last, self.since, self.went_on) = (true, now, None);
        } else if earliest >= self.since {
            self.went_on = Some(self.went_on.unwrap_or(sent).min(sent));
        }
        self.known = self.known.max(now);
    }
}

#[cfg(test)]
mod tests;
