//! One who waits: what it asks for, how long it may, and how it stands.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Permit, Plan, Refused};
use crate::algorithm::Costs;
use crate::clock;
use crate::limit::Margin;

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
    /// Charges it by a new plan. Who was granted and has not come for it may have to wait again.
    pub(super) fn replan(&mut self, plan: &Arc<Plan>, margin: Margin) {
        if matches!(self.state, Waiting::Refused(_)) {
            return;
        }
        let stated = self.stated.iter().map(|(unit, cost)| (&**unit, *cost));
        let counted = stated.filter(|(unit, _)| plan.rules.counts(unit)).collect::<SmallVec<[_; 3]>>();
        match plan.rules.costs(&counted) {
            Ok(costs) => self.costs = costs,
            Err(fault) => {
                let refused = plan.refuse_cost(fault, self.max_wait);
                let answer = match plan.observed(margin, &refused) {
                    Some(permit) => Waiting::Granted(Box::new(permit), clock::now_us()),
                    None => Waiting::Refused(refused),
                };
                if let Waiting::Granted(permit, _) = std::mem::replace(&mut self.state, answer) {
                    permit.take_back();
                }
            }
        }
    }
}
