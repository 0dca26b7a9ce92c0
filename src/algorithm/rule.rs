//! One limit of any kind: what it is asked goes on to its own arithmetic.

use super::{AHEAD_US, Gcra, Mark, NEVER, Seats, SlidingCounter, SlidingLog, State, Used, Window};
#[cfg(feature = "redis")]
use crate::decision::Label;
use crate::decision::Level;
use crate::limit::{Kind, Limit, LimitError, MAX_EXACT, Margin, Rate};

const MIXED: &str = "a state is only ever read by the kind of rule that made it";

/// The reduced numbers of one limit, for one margin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rule {
    Gcra(Gcra),
    Window(Window),
    SlidingCounter(SlidingCounter),
    SlidingLog(SlidingLog),
    Seats(Seats),
}

impl Rule {
    /// Reduces a limit's numbers; a fault names the part.
    pub(crate) fn new(limit: &Limit, margin: Margin) -> Result<Self, LimitError> {
        let kind = limit.checked()?;
        let margin_us = limit.margin_us(kind, margin);
        let keep_margin_us = limit.margin_us(kind, Margin::Default);
        let precise =
            |rate: Rate, most| LimitError::Precision { units: rate.units(), period: rate.period(), most };
        Ok(match kind {
            Kind::Plain(rate) => {
                Rule::Gcra(Gcra::plain(rate, margin_us).ok_or_else(|| precise(rate, rate.units()))?)
            }
            Kind::TokenBucket { rate, burst } => {
                Rule::Gcra(Gcra::token_bucket(rate, burst, margin_us).ok_or_else(|| precise(rate, burst))?)
            }
            Kind::LeakyBucket { rate, queue } => {
                Rule::Gcra(Gcra::leaky_bucket(rate, queue).ok_or_else(|| precise(rate, queue))?)
            }
            Kind::FixedWindow(rate) => Rule::Window(Window::fixed(rate, margin_us)),
            Kind::SlidingWindow { rate, segments } => {
                Rule::Window(Window::segmented(rate, segments, margin_us))
            }
            Kind::SlidingCounter(rate) => Rule::SlidingCounter(
                SlidingCounter::new(rate, margin_us).ok_or_else(|| precise(rate, rate.units()))?,
            ),
            Kind::SlidingLog(rate) => Rule::SlidingLog(SlidingLog::new(rate, margin_us, keep_margin_us)),
            Kind::Concurrency(seats) => Rule::Seats(Seats { cap: u64::from(seats) }),
        })
    }

    pub(crate) fn fresh(&self) -> State {
        match self {
            Rule::Gcra(_) => State::Gcra(Default::default()),
            Rule::Window(_) => State::Window(Default::default()),
            Rule::SlidingCounter(_) => State::SlidingCounter(Default::default()),
            Rule::SlidingLog(_) => State::SlidingLog(Default::default()),
            Rule::Seats(_) => State::Seats(Default::default()),
        }
    }

    /// One worker's part of this limit, of which `label` says the rate: paced, since it is only for a while. The
    /// rate is shared out, not what can fit: a dear call still goes, and waits for it.
    #[cfg(feature = "redis")]
    pub(crate) fn part_of(&self, label: &Label, workers: u32, rank: u32) -> Self {
        let workers = u64::from(workers.max(1));
        match self {
            Rule::Gcra(rule) => Rule::Gcra(rule.part_of(workers)),
            Rule::Seats(rule) => {
                let more = u64::from(u64::from(rank) < rule.cap % workers);
                Rule::Seats(Seats { cap: rule.cap / workers + more })
            }
            _ => {
                let window_us = label.window_us.expect("all but seats have a window");
                Rule::Gcra(Gcra::paced(label.quota, window_us).part_of(workers))
            }
        }
    }

    /// How long an admission counts: the window of a log, and its margin.
    #[cfg(feature = "redis")]
    pub(crate) fn span_us(&self) -> u64 {
        match self {
            Rule::SlidingLog(rule) => rule.span_us(),
            _ => self.budget_us(),
        }
    }

    /// The most that one call may cost.
    pub(crate) fn most(&self) -> u64 {
        match self {
            Rule::Gcra(rule) => rule.most,
            Rule::Window(rule) => rule.most(),
            Rule::SlidingCounter(rule) => rule.most(),
            Rule::SlidingLog(rule) => rule.most(),
            Rule::Seats(rule) => rule.cap,
        }
    }

    /// How long the limit itself holds a call: a leaky bucket's queue.
    #[inline]
    pub(crate) fn hold_us(&self) -> Option<u64> {
        match self {
            Rule::Gcra(rule) if rule.is_leaky() => Some(rule.hold()),
            _ => None,
        }
    }

    /// Tells the rule that calls are held for as long as `hold_us` by a leaky bucket that is decided together
    /// with it: then it is booked so much further ahead.
    pub(crate) fn held_beside(&mut self, hold_us: u64) {
        let ahead_us = AHEAD_US + hold_us;
        match self {
            Rule::Gcra(rule) => rule.ahead_us = ahead_us,
            Rule::Window(rule) => rule.ahead_us = ahead_us,
            Rule::SlidingCounter(rule) => rule.ahead_us = ahead_us,
            Rule::SlidingLog(rule) => rule.ahead_us = ahead_us,
            Rule::Seats(_) => {}
        }
    }

    #[inline]
    pub(crate) fn ahead_us(&self) -> u64 {
        match self {
            Rule::Gcra(rule) => rule.ahead_us,
            Rule::Window(rule) => rule.ahead_us,
            Rule::SlidingCounter(rule) => rule.ahead_us,
            Rule::SlidingLog(rule) => rule.ahead_us,
            Rule::Seats(_) => NEVER,
        }
    }

    #[inline]
    pub(crate) fn is_seats(&self) -> bool {
        matches!(self, Rule::Seats(_))
    }

    /// The first instant, not before `now`, at which `cost` more units fit; [`NEVER`] for a missing seat.
    #[inline(always)]
    pub(crate) fn earliest(&self, state: &State, now: u64, cost: u64) -> u64 {
        match (self, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => rule.earliest(state, now, cost),
            (Rule::Window(rule), State::Window(state)) => rule.earliest(state, now, cost),
            (Rule::SlidingCounter(rule), State::SlidingCounter(state)) => rule.earliest(state, now, cost),
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.earliest(state, now, cost),
            (Rule::Seats(rule), State::Seats(state)) => rule.earliest(state, now, cost),
            _ => unreachable!("{MIXED}"),
        }
    }

    /// Whether `cost` more units fit at `now`, the state as a reader finds it then; with what [`take`](Self::take)
    /// needs to charge them.
    #[inline(always)]
    pub(crate) fn offer(&self, state: &mut State, now: u64, drained: u64, cost: u64) -> Option<Mark> {
        match (self, &*state) {
            // What needs no reading first.
            (Rule::Gcra(rule), State::Gcra(state)) if state.at >= drained && cost > 0 => {
                if let Some(mark) = rule.offer(state, now, cost) {
                    return Some(mark);
                }
            }
            (Rule::Seats(rule), State::Seats(state)) => {
                return rule.left(state).checked_sub(cost).map(|left| Mark(left, now));
            }
            _ => {}
        }
        self.offer_read(state, now, drained, cost)
    }

    #[inline(never)]
    fn offer_read(&self, state: &mut State, now: u64, drained: u64, cost: u64) -> Option<Mark> {
        self.read(state, now, drained);
        match (self, &*state) {
            (Rule::Gcra(rule), State::Gcra(state)) if rule.is_own(state) && cost > 0 => {
                rule.offer(state, now, cost)
            }
            // Their mark is how they stand once they are charged.
            _ => (cost == 0 || self.earliest(state, now, cost) <= now).then(Mark::default),
        }
    }

    /// Charges `cost` units at `now`, where they were [offered](Self::offer) this mark.
    #[inline(always)]
    pub(crate) fn take(&self, state: &mut State, now: u64, cost: u64, offered: Mark) -> Mark {
        match (self, &mut *state) {
            (Rule::Gcra(rule), State::Gcra(state)) if rule.is_own(state) && cost > 0 => {
                rule.take(state, now, offered);
            }
            (Rule::Seats(_), State::Seats(state)) => state.in_use += cost,
            _ => return self.commit_or_mark(state, now, cost),
        }
        offered
    }

    /// Charges `cost` units at `at`, or only says how the limit stands where they are none.
    #[inline]
    pub(crate) fn commit_or_mark(&self, state: &mut State, at: u64, cost: u64) -> Mark {
        if cost > 0 { self.commit(state, at, cost) } else { self.mark(state, at) }
    }

    /// Charges `cost` units at `at`, which is not before what `earliest` answers.
    #[inline(always)]
    pub(crate) fn commit(&self, state: &mut State, at: u64, cost: u64) -> Mark {
        match (self, &mut *state) {
            (Rule::Gcra(rule), State::Gcra(state)) => return rule.commit(state, at, cost),
            (Rule::Window(rule), State::Window(state)) => rule.commit(state, at, cost),
            (Rule::SlidingCounter(rule), State::SlidingCounter(state)) => rule.commit(state, at, cost),
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.commit(state, at, cost),
            (Rule::Seats(_), State::Seats(state)) => state.in_use += cost,
            _ => unreachable!("{MIXED}"),
        }
        self.mark(state, at)
    }

    /// The mark of a limit that was charged nothing at `at`, or of one whose mark is how it stands.
    #[inline]
    pub(crate) fn mark(&self, state: &State, at: u64) -> Mark {
        match (self, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => rule.mark(state, at),
            (Rule::Seats(rule), State::Seats(state)) => Mark(rule.left(state), at),
            _ => {
                let level = self.level(state, at);
                Mark(level.remaining, at + level.reset_us)
            }
        }
    }

    /// How the limit stood right after a charge at `slot`, as told at `now`.
    pub(crate) fn level_after(&self, mark: Mark, slot: u64, now: u64) -> Level {
        match self {
            Rule::Gcra(rule) => rule.level_after(mark, slot, now),
            Rule::Seats(_) => Level { most: self.most(), remaining: mark.0, reset_us: 0, wait_us: 0 },
            _ => Level {
                most: self.most(),
                remaining: mark.0,
                reset_us: mark.1.saturating_sub(now),
                wait_us: 0,
            },
        }
    }

    /// Takes a booking back if it is still the last one: the state becomes what it was `before`. A log drops
    /// what was charged at that instant, whatever was booked since; a seat is simply free again.
    pub(crate) fn take_back(&self, state: &mut State, slot: u64, cost: u64, before: Option<&State>) {
        match (self, state, before) {
            (Rule::SlidingLog(rule), State::SlidingLog(state), _) => {
                rule.take_back(state, slot, cost);
            }
            (Rule::Seats(_), State::Seats(state), _) => state.in_use = state.in_use.saturating_sub(cost),
            (_, state, Some(before)) => {
                let mut mine = before.clone();
                self.commit(&mut mine, slot, cost);
                if *state == mine {
                    *state = before.clone();
                }
            }
            (_, _, None) => {}
        }
    }

    /// What [`take_back`](Self::take_back) needs to know of the state before a booking.
    pub(crate) fn before(&self, state: &State) -> Option<State> {
        match state {
            State::SlidingLog(_) | State::Seats(_) => None,
            state => Some(state.clone()),
        }
    }

    /// For how long after its slot the answer to a call says more of when it had arrived than the margin does.
    #[cfg(feature = "client")]
    pub(crate) fn arrivals_us(&self) -> u64 {
        match self {
            Rule::Window(rule) => rule.band_us(),
            Rule::SlidingLog(rule) => rule.margin_us(),
            _ => 0,
        }
    }

    /// A call that was charged `units` at `slot` had arrived by that instant, as its answer says. Whether that is news.
    pub(crate) fn arrived(&self, state: &mut State, slot: u64, units: u64, by: u64) -> bool {
        match (self, state) {
            (Rule::Window(rule), State::Window(state)) => units > 0 && rule.arrived(state, slot, by),
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.arrived(state, slot, units, by),
            _ => false,
        }
    }

    /// What its twin does where a call that was charged `units` at `slot` was not sent. Whether that is taken back: of a
    /// log alone, whatever was booked after it.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) fn uncharge(&self, state: &mut State, slot: u64, units: u64) -> bool {
        match (self, state) {
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.take_back(state, slot, units),
            _ => false,
        }
    }

    /// The service refused a call that was charged `units` at `slot`. Whether that is taken back: of a log alone.
    pub(crate) fn declined(&self, state: &mut State, now: u64, slot: u64, units: u64) -> bool {
        match (self, state) {
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.declined(state, now, slot, units),
            _ => false,
        }
    }

    /// Corrects a charge to what was really used.
    pub(crate) fn settle(&self, state: &mut State, now: u64, booked: Used) {
        // What a service reports is anybody's number.
        let (charged, used) = (booked.charged.min(MAX_EXACT / 4), booked.used.min(MAX_EXACT / 4));
        let booked = Used { charged, used, ..booked };
        match (self, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => rule.settle(state, now, booked),
            (Rule::Window(rule), State::Window(state)) => rule.settle(state, booked),
            (Rule::SlidingCounter(rule), State::SlidingCounter(state)) => rule.settle(state, booked),
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.settle(state, now, booked),
            (Rule::Seats(_), State::Seats(_)) => {}
            _ => unreachable!("{MIXED}"),
        }
    }

    /// The state as a reader at `now` must take it: used up at `drained`, the end of the key's last pause, if
    /// it was last booked before that; used up now, if it was booked further ahead than anyone books.
    #[inline(always)]
    pub(crate) fn read(&self, state: &mut State, now: u64, drained: u64) {
        if self.is_seats() {
            return;
        }
        let tail = state.tail();
        // A pause that ends later than any booking is one of before a clock was set back.
        if tail < drained && drained <= now + self.ahead_us() {
            *state = self.drained(state, drained);
        } else if tail > now + self.ahead_us() {
            *state = self.full(now);
        }
    }

    /// The state with nothing left at `at`, which is not before its tail: what was used stays used, and the
    /// rest counts as used evenly over the last window.
    pub(crate) fn drained(&self, state: &State, at: u64) -> State {
        match (self, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => State::Gcra(rule.drained(state, at)),
            (Rule::Window(rule), State::Window(state)) => State::Window(rule.drained(state, at)),
            (Rule::SlidingCounter(rule), State::SlidingCounter(state)) => {
                State::SlidingCounter(rule.drained(state, at))
            }
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => {
                State::SlidingLog(Box::new(rule.drained(state, at)))
            }
            (Rule::Seats(_), state) => state.clone(),
            _ => unreachable!("{MIXED}"),
        }
    }

    /// The service refused a call that was `sent` then and asks for `wait_us`, at most a second: nothing stays saved
    /// up. A fixed window stays open until its end; a log knows what was used of it then, and takes the rest for what
    /// is not there until the wait is over.
    pub(crate) fn refused(&self, state: &mut State, now: u64, sent: u64, wait_us: u64) {
        match (self, &*state) {
            (Rule::SlidingLog(rule), State::SlidingLog(log)) => {
                *state = State::SlidingLog(Box::new(rule.refused(log, now, sent, wait_us)));
            }
            _ if state.tail() > now || self.is_seats() => {}
            (Rule::Window(rule), State::Window(window)) => *state = State::Window(rule.refused(window, now)),
            _ => *state = self.drained(state, now),
        }
    }

    /// A budget that is used up at `at`.
    pub(crate) fn full(&self, at: u64) -> State {
        match self {
            Rule::Gcra(rule) => State::Gcra(rule.full(at)),
            Rule::Window(rule) => State::Window(rule.full(at)),
            Rule::SlidingCounter(rule) => State::SlidingCounter(rule.full(at)),
            Rule::SlidingLog(rule) => State::SlidingLog(Box::new(rule.full(at))),
            Rule::Seats(_) => State::Seats(Default::default()),
        }
    }

    /// From a used-up budget to an unused one.
    pub(crate) fn budget_us(&self) -> u64 {
        match self {
            Rule::Gcra(rule) => rule.budget_us(),
            Rule::Window(rule) => rule.budget_us(),
            Rule::SlidingCounter(rule) => rule.budget_us(),
            Rule::SlidingLog(rule) => rule.budget_us(),
            Rule::Seats(_) => 0,
        }
    }

    /// Whether the state equals a fresh one: no decision from `now` on can tell them apart.
    pub(crate) fn is_fresh(&self, state: &State, now: u64) -> bool {
        match (self, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => rule.is_fresh(state, now),
            (Rule::Window(rule), State::Window(state)) => rule.is_fresh(state, now),
            (Rule::SlidingCounter(rule), State::SlidingCounter(state)) => rule.is_fresh(state, now),
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.is_fresh(state, now),
            (Rule::Seats(_), State::Seats(state)) => state.in_use == 0,
            _ => unreachable!("{MIXED}"),
        }
    }

    /// What is left at `now`.
    pub(crate) fn level(&self, state: &State, now: u64) -> Level {
        match (self, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => rule.level(state, now),
            (Rule::Window(rule), State::Window(state)) => rule.level(state, now),
            (Rule::SlidingCounter(rule), State::SlidingCounter(state)) => rule.level(state, now),
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.level(state, now),
            (Rule::Seats(rule), State::Seats(state)) => rule.level(state),
            _ => unreachable!("{MIXED}"),
        }
    }

    /// This rule's state for a key that `old` ruled until now: what was used stays used. Seats are no usage:
    /// calls under way give back what they took, and nothing else.
    pub(crate) fn adopt(&self, old: &Rule, state: State, now: u64) -> State {
        match (self, old, state) {
            (Rule::Gcra(rule), Rule::Gcra(old), State::Gcra(state)) => State::Gcra(rule.adopt(old, state)),
            (Rule::SlidingCounter(_), Rule::SlidingCounter(_), state)
            | (Rule::SlidingLog(_), Rule::SlidingLog(_), state)
            | (Rule::Seats(_), Rule::Seats(_), state) => state,
            (Rule::Window(rule), Rule::Window(old), state) if rule.same_segments(old) => state,
            (Rule::Seats(_), _, _) | (_, Rule::Seats(_), _) => self.fresh(),
            (_, old, state) => {
                let used = old.used(&state, now).min(self.most());
                let mut adopted = self.fresh();
                if used > 0 {
                    self.commit(&mut adopted, now.max(state.tail()), used);
                }
                adopted
            }
        }
    }

    /// Units that are in use at `now`, rounded up.
    pub(crate) fn used(&self, state: &State, now: u64) -> u64 {
        match (self, state) {
            (Rule::Gcra(rule), State::Gcra(state)) => rule.used(state, now),
            (Rule::Window(rule), State::Window(state)) => rule.used(state, now),
            (Rule::SlidingCounter(rule), State::SlidingCounter(state)) => rule.used(state, now),
            (Rule::SlidingLog(rule), State::SlidingLog(state)) => rule.used(state, now),
            (Rule::Seats(_), State::Seats(state)) => state.in_use,
            _ => unreachable!("{MIXED}"),
        }
    }
}
