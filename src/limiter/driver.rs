//! A line's task: takes the line's turns, and sleeps between them to the next slot.
//!
//! It ends with the line's last caller. Its runtime may end before: then whoever waits is woken, and the
//! first to come starts another.

use std::sync::Arc;
use std::task::Waker;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::Plan;
use crate::algorithm::NEVER;
use crate::clock;

/// Must not be dropped under the queue's lock.
pub(super) struct Driver {
    plan: Arc<Plan>,
    hash: u64,
    id: usize,
    turn: Arc<Notify>,
    ended: bool,
}

impl Driver {
    pub(super) fn new(plan: Arc<Plan>, hash: u64, id: usize, turn: Arc<Notify>) -> Self {
        Self { plan, hash, id, turn, ended: false }
    }

    /// Runs in the caller's runtime. A runtime that is shutting down drops the task at once.
    pub(super) fn start(self) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.run());
        }
    }

    async fn run(mut self) {
        while let Some(until) = self.plan.shared.queue.drive(self.hash, self.id) {
            let turn = self.turn.notified();
            if until == NEVER {
                turn.await;
            } else {
                // Whichever comes first; a turn too many does no harm.
                _ = tokio::time::timeout_at(clock::instant(until), turn).await;
            }
        }
        self.ended = true;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.ended {
            let wakers = self.plan.shared.queue.undriven(self.hash, self.id);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}
