//! A caller's place in a line of the fleet, and its wait there. Dropping it gives it up; a slot that had come
//! for it goes to the next.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::Fleet;
use super::key::Key;
use super::line::{Slot, Told};
use crate::clock;

/// How long after its deadline a caller still waits for the answer of a trip that is under way: a trip's time
/// budget, and then some.
const GRACE_US: u64 = 1_000_000;

pub(super) struct Place {
    pub(super) fleet: Arc<Fleet>,
    pub(super) key: Arc<Key>,
    pub(super) line: u64,
    pub(super) seq: u64,
    pub(super) deadline: u64,
    pub(super) answer: oneshot::Receiver<Told>,
}

impl Place {
    pub(super) async fn wait(mut self) -> Told {
        // One that may not wait at all is answered by the trip that asks for it.
        let asked = self.deadline <= clock::now_us();
        let until = if asked { self.deadline + GRACE_US } else { self.deadline };
        if let Ok(told) = tokio::time::timeout_at(clock::instant(until), &mut self.answer).await {
            return self.taken(told.unwrap_or(Told::Again));
        }
        // What was booked for it lies ahead of its deadline, or has come.
        let now = clock::now_us();
        let gone = self.key.state.lock().too_late(self.line, self.seq, now);
        if let Some((refused, _)) = gone {
            return Told::Refused(refused);
        }
        // It was answered at that very moment.
        let told = (&mut self.answer).await;
        self.taken(told.unwrap_or(Told::Again))
    }

    /// Takes the slot that is kept for the caller; if it has gone to another, the caller asks again.
    fn taken(&self, told: Told) -> Told {
        match told {
            Told::Come => self.claim().map_or(Told::Again, |slot| Told::Go(Box::new(slot))),
            told => told,
        }
    }

    fn claim(&self) -> Option<Slot> {
        self.key.state.lock().line(self.line)?.claim(self.seq)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.answer.close();
        let slot = match self.answer.try_recv() {
            Ok(Told::Go(slot)) => Some(*slot),
            Err(TryRecvError::Closed | TryRecvError::Empty) => {
                let gone = self.key.state.lock().line(self.line).and_then(|line| line.remove(self.seq));
                // It may have been given a slot at that very moment.
                if gone.is_none() { self.claim() } else { None }
            }
            Ok(Told::Come) => self.claim(),
            Ok(_) => None,
        };
        self.fleet.pass_on(&self.key, self.line, slot.into_iter().collect());
    }
}
