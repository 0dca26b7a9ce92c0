//! Several limits that are decided together: they go on one instant, or none does.

use super::{NEVER, Rule, State};

/// Rounds in which the limits of a decision agree on an instant.
const ROUNDS: usize = 8;

/// The first instant from `now` on at which all costs fit together: asked again and again until all agree,
/// for a limit may be open, closed and open again. Unsettled after eight rounds it is a lower bound, to ask
/// again at. A cost of 0 neither asks nor moves a limit.
pub(crate) fn joint_earliest<'a>(
    parts: impl Iterator<Item = (&'a Rule, &'a State, u64)> + Clone,
    now: u64,
) -> Joint {
    let mut at = now;
    for _ in 0..ROUNDS {
        let asked = parts.clone().filter(|(_, _, cost)| *cost > 0);
        let latest = asked.map(|(rule, state, cost)| rule.earliest(state, at, cost)).max().unwrap_or(at);
        if latest == at {
            return Joint::Agreed(at);
        }
        at = latest;
        if at == NEVER {
            break;
        }
    }
    Joint::NotBefore(at)
}

/// What several limits answer together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joint {
    /// All fit at this instant.
    Agreed(u64),
    /// They do not fit before this instant.
    NotBefore(u64),
}
