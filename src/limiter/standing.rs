//! How a key stands, and what changes that beside its calls: what services answer, operators, and calls that were sent
//! already.
//!
//! In one process a change is a step in the store, told to those who wait; in a fleet it holds here at once, and
//! elsewhere as soon as Redis hears of it.

use std::time::Duration;

#[cfg(feature = "redis")]
use super::answers;
use super::answers::Verdict;
use super::{Limiter, Peek, Shared};
use crate::algorithm::NEVER;
use crate::clock::{self, micros};
use crate::decision::Decision;
use crate::signals::Signals;
#[cfg(feature = "redis")]
use crate::store::redis::wire::What;
use crate::store::{Part, PauseAsk, Table};

/// The longest that a service's pause is held before one call probes it, again and again.
const MAX_PAUSE_US: u64 = 3_600_000_000;

impl Limiter {
    /// How a key stands. Changes nothing. Where the budgets live in Redis, as that says, or said last while it is
    /// away.
    pub async fn peek(&self, key: &str) -> Peek {
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            let plan = self.core.current.load_full();
            return Box::pin(fleet.peek(&plan, self.margin, key)).await;
        }
        let plan = self.core.current.load();
        let part = plan.whole(self.margin, key);
        let standing = self.core.shared.store.peek(part);
        let paused_us = standing.paused_until.map(|until| until - standing.now);
        Peek {
            decision: Decision::standing(plan.rules.labels.clone(), paused_us, standing.levels),
            waiting: self.core.shared.queue.waiting(&part, &self.core.shared.store),
        }
    }

    /// Tells the limiter what a response under `key` said.
    ///
    /// A throttling answer that asks for more than a second, or that follows another one, pauses the key for
    /// everyone: for as long as it asks, else for 0.5 s, doubling with each such pause to 30 s until a call does
    /// well. In spite of it one call an hour goes, to find out whether it is over. Any other throttling answer leaves
    /// the key open, but nothing saved up, and what was booked ahead is booked anew; of a sliding log what was left when
    /// the call was sent is missing until the wait that it asks for is over, and returns then, one unit first (evenly
    /// over a period where it asks for no wait). One that forbids another try and names no wait, as of an account that
    /// is used up, changes nothing.
    ///
    /// It follows another one if that was the last answer and known when the call was sent. Where several processes
    /// share the budgets in Redis, the answers of all count, as far as they are heard of; there it must have been sent
    /// 0.1 s or more after another refused call, which was sent after the first of an unbroken row of them was known.
    pub fn observe(&self, key: &str, signals: &Signals) {
        let answers = &self.core.shared.answers;
        if !answers.concerns(signals) {
            return;
        }
        let verdict = answers.judge(key, signals, self.row_us(), clock::now_us());
        if verdict == Verdict::Nothing {
            return;
        }
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            let now = clock::now_us();
            let what = match verdict {
                Verdict::Nothing => return,
                Verdict::Well { sent } => What::Answered { sent_ago_us: now.saturating_sub(sent) },
                Verdict::Drain { sent, wait_us } => {
                    What::Throttled { sent_ago_us: now.saturating_sub(sent), wait_us }
                }
                Verdict::Pause { until } => {
                    What::Pause { for_us: until.saturating_sub(now), probe_every_us: MAX_PAUSE_US }
                }
            };
            return fleet.change(&self.core.current.load_full(), self.margin, key, what);
        }
        self.change(key, |store, part| match verdict {
            Verdict::Nothing => {}
            Verdict::Well { sent } => store.resume(part, Some(sent)),
            Verdict::Drain { sent, wait_us } => store.refused(part, sent, wait_us),
            Verdict::Pause { until } => store.pause(part, PauseAsk { until, probe_every: MAX_PAUSE_US }),
        });
        // Until now others were let go.
        answers.known(key, clock::now_us());
    }

    /// Whether a pause holds a key, as far as it is known here.
    pub(super) fn is_paused(&self, key: &str) -> bool {
        let plan = self.core.current.load();
        if plan.policy.is_observe_only() {
            return false;
        }
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            return fleet.is_paused(key);
        }
        plan.shared.store.is_paused(plan.part(self.margin, key, &[]))
    }

    /// How long a row of 429s must have lasted.
    fn row_us(&self) -> u64 {
        #[cfg(feature = "redis")]
        if self.core.shared.fleet.as_ref().is_some_and(|fleet| fleet.has_others()) {
            return answers::ROW_US;
        }
        0
    }

    /// Holds a key for `time`, for everyone: in other processes as soon as Redis hears of it. Only ever makes a pause
    /// longer; [`resume`](Self::resume) ends it. Saturates: a pause without end is `Duration::MAX`.
    pub fn pause(&self, key: &str, time: Duration) {
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            let what = What::Pause { for_us: micros(time), probe_every_us: NEVER };
            return fleet.change(&self.core.current.load_full(), self.margin, key, what);
        }
        let until = clock::now_us().saturating_add(micros(time));
        self.change(key, |store, part| store.pause(part, PauseAsk { until, probe_every: NEVER }));
    }

    /// Ends a key's pause, whoever asked for it. Its budgets begin empty, as at the end of any pause.
    pub fn resume(&self, key: &str) {
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            return fleet.change(&self.core.current.load_full(), self.margin, key, What::Resume);
        }
        self.change(key, |store, part| store.resume(part, None));
    }

    /// Charges one request under `key`, whatever the state: for what was already sent.
    #[cfg(feature = "client")]
    pub(crate) fn charge(&self, key: &str) {
        let one_request = |rules: &crate::algorithm::Rules| {
            let limits = rules.labels.limits.iter();
            limits.map(|label| u64::from(&*label.unit == crate::limit::REQUESTS)).collect::<Box<[u64]>>()
        };
        #[cfg(feature = "redis")]
        if let Some(fleet) = &self.core.shared.fleet {
            let plan = self.core.current.load_full();
            return fleet.charge(&plan, self.margin, key, one_request(&plan.rules));
        }
        self.change(key, |store, part| {
            store.charge(Part { costs: &one_request(part.rules), ..part });
        });
    }

    /// Changes how a key stands, for everyone.
    pub(super) fn change(&self, key: &str, then: impl FnOnce(&Table, Part<'_>)) {
        let plan = self.core.current.load();
        let part = plan.whole(self.margin, key);
        let Shared { store, queue, .. } = &*self.core.shared;
        queue.change(&part, store, || then(store, part));
    }
}
