//! Where a state is not taken as it was written: what was lost and a worker still knows, as in `heal_pause` of
//! `lua/pause_key.lua` and `heal` of `lua/rule.lua`; and what a pause or a clock made of it, as in `read` there.

use super::{Open, fresh_at};
use crate::algorithm::{Rule, State};
use crate::store::redis::wire::*;

/// How much of what time repaid before a loss counts as used.
const STAND_US: u64 = 250_000;

pub(super) fn heal_pause(pause: &mut Paused, seen: &Paused, now: u64, budget_us: u64) -> bool {
    if now >= seen.until.max(seen.drained) + budget_us || seen.generation < pause.generation {
        return false;
    }
    let before = *pause;
    if seen.generation > pause.generation || seen.until > pause.until {
        *pause = Paused { drained: pause.drained, ..*seen };
    }
    pause.drained = pause.drained.max(seen.drained);
    *pause != before
}

pub(super) fn heal(limit: &mut Open<'_>, seen: &Snapshot, version: u64, now: u64) {
    let lineage = |version: u64| version / 65_536;
    let same = limit.version != 0 && lineage(limit.version) == lineage(version);
    if same && !(1..32_768).contains(&(version.wrapping_sub(limit.version) % 65_536)) {
        return;
    }
    let rule = limit.rules[0];
    let numbers = rule.numbers(rule);
    let mut state = match seen {
        Snapshot::Log { used, tail } => {
            let mut state = rule.fresh();
            rule.commit(&mut state, *tail, (*used).min(rule.most()));
            state
        }
        Snapshot::Whole(state) => {
            let mut clamped = state.numbers();
            match rule {
                Rule::Gcra(_) if clamped[2] == numbers[0] as u64 => {
                    clamped[0] = clamped[0].min(rule.most() * clamped[2]);
                }
                Rule::Window(_) => clamped[4..].iter_mut().for_each(|count| *count = rule.most().min(*count)),
                Rule::SlidingCounter(_) => {
                    clamped[2..].iter_mut().for_each(|count| *count = rule.most().min(*count));
                }
                _ => {}
            }
            rule.state_of(&clamped).unwrap()
        }
    };
    if fresh_at(limit.rules, &state) <= now {
        return;
    }
    if matches!(rule, Rule::Gcra(_)) && (same || limit.version == 0) && state.tail() < now {
        let [p, r] = [numbers[0], numbers[1]].map(|number| number as f64);
        let mut stood = state.numbers();
        if r * STAND_US as f64 >= p {
            stood[1] = now.min(stood[1] + STAND_US);
        }
        state = rule.state_of(&stood).unwrap();
    }
    let tail = limit.state.tail();
    if !same && limit.version != 0 {
        let at = now.max(state.tail()).max(tail);
        if rule.used(&state, at) <= rule.used(&limit.state, at) {
            return;
        }
    }
    if state.tail() < tail {
        rule.commit(&mut state, tail, 0);
    }
    if same {
        limit.version = version;
    }
    (limit.state, limit.dirty) = (state, true);
}

/// Whether a reader takes the state for another one.
pub(super) fn is_taken_for_another(rule: &Rule, state: &State, now: u64, drained: u64) -> bool {
    let (tail, reach) = (state.tail(), now + rule.ahead_us());
    (tail < drained && drained <= reach) || tail > reach
}
