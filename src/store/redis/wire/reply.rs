//! What a trip answers: how each key stood, who was given which slot, and why the batch ended.
//!
//! Read in the order in which `lua/book.lua` and `lua/quick.lua` write it. What no script of ours gives is garbled, and
//! never taken for an unused budget.

use redis::Value;
use smallvec::SmallVec;

use super::{Garbled, Trip, TripPart};
use crate::algorithm::{NEVER, Rule, State};
use crate::limit::MAX_EXACT;

/// What was decided.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) now: u64,
    pub(crate) parts: SmallVec<[ReplyPart; 1]>,
    /// Caller by caller; those after the end of the batch are missing.
    pub(crate) slots: Vec<Slot>,
    pub(crate) ended: Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Charged at that instant.
    At(u64),
    /// Its time does not reach; it could go then.
    TooLate(u64),
}

/// Why the batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Everyone was answered.
    All,
    /// The next one's slot lies beyond the span.
    Span,
    /// The next one could go then, which is further ahead than anyone books.
    Ahead(u64),
    /// The next one waits for a seat of the limit at this index, over all parts.
    Seatless(usize),
    /// A key is paused; ask again then: at its end, or when a probe may go.
    Paused { until: u64, ask_again: u64 },
}

/// How one key stood when the trip arrived, as a reader then takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplyPart {
    pub(crate) pause: Paused,
    /// By limit, in the policy's order.
    pub(crate) states: SmallVec<[Snapshot; 3]>,
    /// By limit of seats, in the policy's order, after the trip.
    pub(crate) seats: SmallVec<[SeatAnswer; 1]>,
    /// By limit, which writing of the state that was; 0 where there was none. For healing.
    pub(crate) versions: SmallVec<[u64; 3]>,
    /// The numbers under which the states are to be read.
    pub(crate) numbers: u64,
}

/// A key's last pause, as it is stored: `store::entry::Pause` of the fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Paused {
    pub(crate) until: u64,
    pub(crate) probe_at: u64,
    pub(crate) probe_every: u64,
    pub(crate) probed: u64,
    pub(crate) drained: u64,
    /// Grows when the pause is ended, by an operator or a probe: what is remembered of an older one is void.
    pub(crate) generation: u64,
}

/// One limit's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Snapshot {
    /// All of it. A state of seats holds those in use in the whole fleet.
    Whole(State),
    /// A log is too long to be sent: the units in its window at now, and its newest entry.
    Log { used: u64, tail: u64 },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SeatAnswer {
    /// Another one than was reported: this process was forgotten, or the state was lost. 0: nothing is kept of it,
    /// for it has nothing in use and waits for nothing.
    pub(crate) epoch: u64,
    /// Grants to this session, in all.
    pub(crate) granted: u64,
    /// Seats in use in the whole fleet.
    pub(crate) used: u64,
    /// Until the next lease of anybody runs out.
    pub(crate) lease_left_us: u64,
    /// Whether this process is in the queue.
    pub(crate) queued: bool,
}

impl Paused {
    pub(super) fn numbers(&self) -> [u64; 6] {
        [self.until, self.probe_at, self.probe_every, self.probed, self.drained, self.generation]
    }
}

impl Snapshot {
    pub(super) fn numbers(&self) -> SmallVec<[u64; 4]> {
        match self {
            Snapshot::Whole(state) => state.numbers(),
            Snapshot::Log { used, tail } => [*used, *tail].into_iter().collect(),
        }
    }
}

impl Trip<'_> {
    pub(crate) fn reply(&self, value: Value) -> Result<Reply, Garbled> {
        let mut numbers = Numbers::of(value)?;
        let now = numbers.next()?;
        let mut parts = SmallVec::<[ReplyPart; 1]>::new();
        for part in self.parts {
            parts.push(ReplyPart::read(part, &mut numbers)?);
        }
        let ended = match (numbers.next()?, numbers.next()?, numbers.next()?) {
            (0, ..) => Ended::All,
            (1, ..) => Ended::Span,
            (2, at, _) => Ended::Ahead(at),
            (3, index, _) => Ended::Seatless(index as usize),
            (4, until, ask_again) => Ended::Paused { until, ask_again },
            (other, ..) => return Err(Garbled(format!("an end of kind {other}"))),
        };
        for (part, read) in self.parts.iter().zip(&mut parts) {
            for _ in part.rules().iter().filter(|rule| rule.is_seats()) {
                read.seats.push(SeatAnswer {
                    epoch: numbers.next()?,
                    granted: numbers.next()?,
                    used: numbers.next()?,
                    lease_left_us: numbers.next()?,
                    queued: numbers.next()? == 1,
                });
            }
        }
        let slot = |number: i64| match u64::try_from(number) {
            Ok(wait) => Slot::At(now + wait),
            Err(_) => Slot::TooLate(now + number.unsigned_abs() - 1),
        };
        let slots = numbers.rest().map(slot).collect();
        Ok(Reply { now, parts, slots, ended })
    }
}

impl ReplyPart {
    fn read(part: &TripPart<'_>, numbers: &mut Numbers) -> Result<Self, Garbled> {
        let never = |instant| if instant >= MAX_EXACT { NEVER } else { instant };
        let pause = Paused {
            until: numbers.next()?,
            probe_at: never(numbers.next()?),
            probe_every: never(numbers.next()?),
            probed: numbers.next()?,
            drained: numbers.next()?,
            generation: numbers.next()?,
        };
        let (mut states, mut versions) = (SmallVec::new(), SmallVec::new());
        for rule in part.rules() {
            versions.push(if rule.is_seats() { 0 } else { numbers.next()? });
            states.push(match rule {
                Rule::SlidingLog(_) => Snapshot::Log { used: numbers.next()?, tail: numbers.next()? },
                rule => Snapshot::Whole(numbers.state(rule)?),
            });
        }
        Ok(Self { pause, states, seats: SmallVec::new(), versions, numbers: part.fingerprint() })
    }
}

/// The numbers of a reply, one after the other.
struct Numbers(std::vec::IntoIter<i64>);

impl Numbers {
    fn of(value: Value) -> Result<Self, Garbled> {
        let Value::BulkString(bytes) = value else { return Err(Garbled(format!("{value:?}"))) };
        let (doubles, rest) = bytes.as_chunks::<8>();
        let number = |double: &[u8; 8]| f64::from_le_bytes(*double) as i64;
        let numbers = doubles.iter().map(number).collect::<Vec<_>>();
        if rest.is_empty() { Ok(Self(numbers.into_iter())) } else { Err(Garbled("half a number".into())) }
    }

    fn next(&mut self) -> Result<u64, Garbled> {
        let number = self.0.next().ok_or_else(|| Garbled("too few numbers".into()))?;
        u64::try_from(number).map_err(|_| Garbled(format!("{number} where nothing is below 0")))
    }

    fn state(&mut self, rule: &Rule) -> Result<State, Garbled> {
        let mut numbers = SmallVec::<[u64; 5]>::new();
        match rule {
            Rule::Gcra(_) => numbers.extend([self.next()?, self.next()?, self.next()?]),
            Rule::Window(_) => {
                numbers.extend([self.next()?, self.next()?, self.next()?, self.next()?]);
                for _ in 0..numbers[3] {
                    numbers.push(self.next()?);
                }
            }
            Rule::SlidingCounter(_) => {
                numbers.extend([self.next()?, self.next()?, self.next()?, self.next()?])
            }
            Rule::Seats(_) | Rule::SlidingLog(_) => numbers.push(self.next()?),
        }
        rule.state_of(&numbers).ok_or_else(|| Garbled(format!("{numbers:?} is no state of {rule:?}")))
    }

    fn rest(self) -> impl Iterator<Item = i64> {
        self.0
    }
}
