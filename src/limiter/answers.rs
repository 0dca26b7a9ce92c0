//! What this process remembers of the throttling answers of a key: whether a 429 is a lone one or one of
//! several, and how often it had to hold the key without being told for how long.
//!
//! A 429 is hard if the service asks for more than a second, or if the answer before it was one too and the
//! call was sent after that was known. A hard one pauses the key, a soft one only empties its budgets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::micros;
use crate::signals::{Class, Signals};

/// A wait above this makes a 429 hard.
const SOFT_WAIT: Duration = Duration::from_secs(1);
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
    /// Whether the last answer was a 429.
    last: bool,
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
    pub(crate) fn judge(&self, key: &str, signals: &Signals, now: u64) -> Verdict {
        let received = signals.received.map_or(now, crate::clock::at_us);
        let sent = signals.sent.map(crate::clock::at_us);
        match signals.class() {
            Class::Throttle => self.throttled(key, signals.wait(), sent, received),
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

    fn throttled(&self, key: &str, wait: Option<Duration>, sent: Option<u64>, received: u64) -> Verdict {
        let mut keys = self.keys.lock();
        if !keys.contains_key(key) {
            if keys.len() == keys.capacity() {
                keys.retain(|_, throttled| throttled.known + FORGET_US > received);
            }
            keys.insert(key.into(), Throttled::default());
            self.len.store(keys.len(), Ordering::Relaxed);
        }
        let throttled = keys.get_mut(key).expect("it was just inserted");
        let wait = wait.filter(|wait| !wait.is_zero());
        // Without a stamp the call counts as sent after what was known.
        let again = throttled.last && sent.is_none_or(|sent| sent > throttled.known);
        let of_this_episode = throttled.began > 0 && sent.is_some_and(|sent| sent <= throttled.began);
        let hard = again || wait.is_some_and(|wait| wait > SOFT_WAIT);
        (throttled.last, throttled.known) = (true, throttled.known.max(received));
        if !hard {
            return Verdict::Drain;
        }
        if !of_this_episode {
            throttled.episodes += 1;
            throttled.began = received;
        }
        let untold = UNTOLD_US.0 << (throttled.episodes - 1).min(16);
        Verdict::Pause { until: received + wait.map_or(untold.min(UNTOLD_US.1), micros) }
    }
}
