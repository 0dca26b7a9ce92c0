//! One key of one policy, as this process knows it: who waits for it, which seats are held, until when it is
//! paused, and how Redis said it stood.
//!
//! Under one lock, which is never held across a trip, and under which nobody is woken.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::fates::Fates;
use super::known::Known;
use super::line::{self, Answer, Caller, Line, Slot, Told};
use super::seated::seat_labels;
use super::seats::Seats;
use crate::decision::Label;
use crate::limit::Margin;
use crate::limiter::Plan;
use crate::store::redis::names::Names;
use crate::store::redis::wire::{ReplyPart, What};

/// How long a key is kept for what Redis does not know of it: the longest that a soft 429 holds a bucket.
const UNTOLD_US: u64 = 3_600_000_000;

/// One key of one policy.
pub(super) struct Key {
    pub(super) key: Box<str>,
    pub(super) state: Mutex<State>,
    /// Held by whoever reports seats until the answer is heard, so that reports and answers come in order.
    pub(super) reports: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
pub(super) struct State {
    /// Its names in Redis, by the plan whose limits they name.
    pub(super) names: Option<(usize, Arc<Names>)>,
    pub(super) lines: Vec<Line>,
    /// By limit of seats.
    pub(super) seats: SmallVec<[(Label, Seats); 1]>,
    /// Slots that nobody wanted and that could not go back, for whoever comes before they are due.
    pub(super) left: Vec<Slot>,
    /// Until when nothing goes, and which life of the pause that is.
    pub(super) paused_until: u64,
    pub(super) generation: u64,
    /// When a call was last answered with a soft 429, here or elsewhere.
    throttled: Option<u64>,
    pub(super) known: Option<Known>,
    pub(super) fates: Fates,
    pub(super) declined: Fates,
    /// Soft 429s of which Redis was not told yet: when the last of their calls was sent, and the longest wait.
    pub(super) untold_429: Option<(u64, u64)>,
    /// What others have not been told of the pause, for Redis was away.
    pub(super) unsaid: Option<What>,
    /// Since when what is found in Redis is to be drained first: calls went by a local share while it was away, or
    /// it did not hear of a soft 429.
    pub(super) to_drain: Option<u64>,
}

/// Answers to give once the lock is let go.
#[derive(Default)]
pub(super) struct Answers(Vec<(Answer, Told)>);

impl Answers {
    pub(super) fn push(&mut self, caller: Caller, told: Told) {
        self.0.push((caller.answer, told));
    }

    /// Wakes whoever was answered; gives back the slots of those who were not there any more.
    pub(super) fn give(self) -> Vec<Slot> {
        let lost = self.0.into_iter().filter_map(|(answer, told)| match answer.send(told) {
            Err(Told::Go(slot)) => Some(*slot),
            _ => None,
        });
        lost.collect()
    }
}

impl Key {
    pub(super) fn new(key: &str) -> Self {
        Self { key: key.into(), state: Mutex::default(), reports: Arc::default() }
    }
}

impl State {
    /// Whether nothing would be lost with it.
    pub(super) fn is_idle(&self, now: u64, idle_us: u64) -> bool {
        self.lines.iter().all(Line::is_over)
            && self.seats.iter().all(|(_, seats)| !seats.is_kept() && !seats.is_unreported())
            && now >= self.paused_until
            && self.unsaid.is_none()
            && self.to_drain.max(self.throttled).is_none_or(|since| now > since + UNTOLD_US)
            && self.known.as_ref().is_none_or(|known| now > known.received + idle_us)
    }

    pub(super) fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.callers.len()).sum()
    }

    pub(super) fn line(&mut self, id: u64) -> Option<&mut Line> {
        self.lines.iter_mut().find(|line| line.id == id)
    }

    pub(super) fn tidy(&mut self) {
        self.lines.retain(|line| !line.is_over());
    }

    /// Until when the key is held, as known here.
    pub(super) fn paused(&self, now: u64) -> Option<u64> {
        (now < self.paused_until).then_some(self.paused_until)
    }

    /// The key is held for longer, or, by a newer word, for less.
    pub(super) fn pause(&mut self, until: u64, generation: Option<u64>) {
        match generation {
            Some(generation) if generation < self.generation => return,
            Some(generation) if generation > self.generation => {
                self.resume();
                (self.generation, self.paused_until) = (generation, until);
            }
            _ => self.paused_until = self.paused_until.max(until),
        }
        self.left.clear();
        self.lines.iter().for_each(|line| line.turn.notify_one());
    }

    /// A call was answered with a soft 429, here or elsewhere: what it leaves nothing of lapses.
    pub(super) fn throttled(&mut self, now: u64) {
        self.throttled = self.throttled.max(Some(now));
        let left = std::mem::take(&mut self.left);
        let (lapsed, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|slot| self.lapses(slot));
        self.left = left;
        self.uncharge(lapsed.into_iter().filter(Slot::is_of_logs_alone));
        for i in 0..self.lines.len() {
            let line = &self.lines[i];
            if let Some(until) = self.drained_until(&line.plan, line.margin, line.limits) {
                self.lines[i].drained(now, until);
            }
        }
    }

    /// Until when no call goes under these limits, after a soft 429.
    pub(super) fn drained_until(&self, plan: &Plan, margin: Margin, limits: u32) -> Option<u64> {
        let throttled = self.throttled?;
        Some(throttled.saturating_add(line::empty_us(plan, margin, limits)?))
    }

    /// Whether the last soft 429 leaves nothing of a slot.
    pub(super) fn lapses(&self, slot: &Slot) -> bool {
        self.throttled.is_some_and(|throttled| slot.lapses(throttled))
    }

    /// Whether Redis alone can say whether a call may go now: all that is known here, it knows too.
    pub(super) fn is_open(&self, plan: &Plan, margin: Margin, costs: &[u64], now: u64) -> bool {
        let drained_until = self.drained_until(plan, margin, super::touched(costs));
        self.to_drain.is_none()
            && self.unsaid.is_none()
            && self.paused(now).is_none()
            && drained_until.is_none_or(|until| until <= now)
    }

    /// What the pause kept others from may be possible now.
    pub(super) fn resume(&mut self) {
        self.paused_until = 0;
        self.doubt();
        for line in &mut self.lines {
            line.quiet_until = 0;
            line.turn.notify_one();
        }
    }

    /// Takes in what any trip says about the key as a whole.
    pub(super) fn heard(&mut self, plan: &Plan, part: &ReplyPart, now: u64, received: u64) {
        // From then on one call may probe; Redis says which.
        let until = match part.pause.until.min(part.pause.probe_at).checked_sub(now) {
            Some(left) => received.saturating_add(left),
            None => 0,
        };
        self.pause_is(until, part.pause.generation);
        // A report may be what frees a seat for a line of this very process.
        let mut new = false;
        for ((_, label), answer) in seat_labels(plan).zip(&part.seats) {
            new |= self.seats_of(label).answered(answer, received);
        }
        if new {
            self.look_for_seats();
        }
    }

    /// Redis's own word on the pause.
    pub(super) fn pause_is(&mut self, until: u64, generation: u64) {
        if generation > self.generation || until > self.paused_until {
            self.pause(until, Some(generation));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_key_is_kept_for_what_redis_does_not_know_of_it() {
        let is_idle = |state: State| [20, 4_000].map(|after| state.is_idle(after * SECOND, 10 * SECOND));
        assert_eq!(is_idle(State::default()), [true, true]);
        assert_eq!(is_idle(State { to_drain: Some(SECOND), ..State::default() }), [false, true]);
        assert_eq!(is_idle(State { throttled: Some(SECOND), ..State::default() }), [false, true]);
        assert_eq!(is_idle(State { unsaid: Some(What::Resume), ..State::default() }), [false, false]);
    }
}
