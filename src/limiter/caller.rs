//! One who waits: what it asks for, how long it may, and how it stands.

use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Permit, Refused};
use crate::algorithm::Costs;

/// A caller in a line.
pub(super) struct Caller {
    pub(super) stated: SmallVec<[(Box<str>, u64); 2]>,
    pub(super) costs: Costs,
    pub(super) arrived: u64,
    /// When it was last expected to go.
    pub(super) expected: u64,
    /// The last instant at which it may go.
    pub(super) deadline: u64,
    pub(super) max_wait: Duration,
    pub(super) state: Waiting,
    pub(super) waker: Option<Waker>,
}

pub(super) enum Waiting {
    InLine,
    /// Granted at that instant.
    Granted(Box<Permit>, u64),
    Refused(Refused),
    /// Did not come for the seat that it was granted; in line again when it does.
    Absent,
}

impl Caller {
    pub(super) fn waits(&self) -> bool {
        matches!(self.state, Waiting::InLine | Waiting::Absent)
    }
}
