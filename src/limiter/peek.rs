//! How a key stands, for operators and tests. Reading it changes nothing.

use std::time::Duration;

use crate::decision::{Decision, LimitStatus};

/// How a key stands: its pause, its queue, and what is left under each limit.
#[derive(Debug, Clone)]
pub struct Peek {
    pub(super) decision: Decision,
    pub(super) waiting: usize,
}

impl Peek {
    /// How much longer the key is held, if it is paused.
    pub fn paused(&self) -> Option<Duration> {
        self.decision.paused().then(|| self.decision.wait())
    }

    /// Callers that wait for the key in this process.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Units left under the limit of which the smallest share is left; `u64::MAX` without limits.
    pub fn remaining(&self) -> u64 {
        self.decision.remaining()
    }

    /// Every limit, in the policy's order.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitStatus<'_>> {
        self.decision.limits()
    }

    /// The limit of this name.
    pub fn limit(&self, name: &str) -> Option<LimitStatus<'_>> {
        self.limits().find(|limit| limit.name() == name)
    }
}
