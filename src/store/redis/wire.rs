//! What goes to Redis and what comes back, in the order in which the scripts read and write it.
//!
//! The only file that knows how the scripts in `lua/` are called. Instants are microseconds of Redis's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Value;
use smallvec::SmallVec;

use super::names::Names;
use super::script::{self, Script};
use crate::algorithm::{Mark, NEVER, Rule, Rules, State};
use crate::limit::{MAX_EXACT, Margin};

/// One call of a script.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) args: Vec<Vec<u8>>,
}

/// Who asks: one process, or one store of it.
#[derive(Debug)]
pub(crate) struct Worker {
    /// Never used again by another.
    pub(crate) session: Box<str>,
    /// Before the session's name, the channel on which it hears of its seats; alone, that of everyone.
    pub(crate) channel: Box<str>,
    pub(crate) lease_us: u64,
    /// The key that lists the live workers, where one server holds all keys, and when that key was made as this
    /// process knows it, 0 before it does. Where another birth is found all state was lost, and nobody is granted
    /// a seat before everyone has reported.
    pub(crate) presence: Option<Box<str>>,
    pub(crate) born: Arc<AtomicU64>,
}

/// One trip: which budgets, and who waits for them, in order. Without callers it only reads, and reports seats.
pub(crate) struct Trip<'a> {
    /// The clock of tests; by default Redis's own.
    pub(crate) now: Option<u64>,
    pub(crate) worker: &'a Worker,
    pub(crate) parts: &'a [TripPart<'a>],
    /// At most 64.
    pub(crate) callers: &'a [Waiter<'a>],
    /// Charges the callers at once, whatever the state: what was already sent.
    pub(crate) forced: bool,
}

/// One key of one policy.
pub(crate) struct TripPart<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) margin: Margin,
    pub(crate) names: &'a Names,
    /// What this process saw last, to heal what was lost.
    pub(crate) seen: Option<&'a ReplyPart>,
    /// By limit of seats, in the policy's order.
    pub(crate) seats: &'a [SeatReport],
}

/// A caller that waits.
#[derive(Debug, Clone)]
pub(crate) struct Waiter<'a> {
    /// How long from now it may still be held, apart from what a leaky bucket holds it in its own time.
    pub(crate) held_us: u64,
    /// By limit, over all parts.
    pub(crate) costs: &'a [u64],
}

/// What a process knows of its seats under one limit of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SeatReport {
    /// Which life of the session this is; 0 before the first answer.
    pub(crate) epoch: u64,
    /// Grows with each report; an older one is ignored.
    pub(crate) turn: u64,
    /// The grants that it has heard of, in all.
    pub(crate) seen: u64,
    /// Seats that calls hold, and those that are spare.
    pub(crate) in_use: u64,
    /// Seats in hand for the callers of this trip; they are part of `in_use`.
    pub(crate) spare: u64,
    /// Whether it may be granted new ones.
    pub(crate) may_take: bool,
}

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
    /// for it has nothing in use and asked for nothing.
    pub(crate) epoch: u64,
    /// Grants to this session, in all.
    pub(crate) granted: u64,
    /// Seats in use in the whole fleet.
    pub(crate) used: u64,
    /// Until the next lease of anybody runs out.
    pub(crate) lease_left_us: u64,
}

/// A correction of one charge under one limit.
pub(crate) struct Settlement<'a> {
    pub(crate) now: Option<u64>,
    pub(crate) rules: &'a Rules,
    pub(crate) margin: Margin,
    pub(crate) names: &'a Names,
    pub(crate) index: usize,
    pub(crate) slot: u64,
    pub(crate) charged: u64,
    pub(crate) used: u64,
    pub(crate) mark: Mark,
}

/// A booking that nobody wants: uncharged where it is still the last.
pub(crate) struct GiveBack<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) margin: Margin,
    pub(crate) names: &'a Names,
    pub(crate) slot: u64,
    /// By limit of this part; seats are given back by a report.
    pub(crate) costs: &'a [u64],
    /// The states before the booking, and after it.
    pub(crate) before: &'a [Snapshot],
    pub(crate) after: &'a [Snapshot],
}

/// A change of a key's pause.
pub(crate) struct Change<'a> {
    pub(crate) now: Option<u64>,
    pub(crate) worker: &'a Worker,
    pub(crate) rules: &'a Rules,
    pub(crate) margin: Margin,
    pub(crate) names: &'a Names,
    pub(crate) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Holds the key for that long from now, or longer; never shorter.
    Pause { for_us: u64, probe_every_us: u64 },
    /// Empties what is not booked ahead.
    Drain,
    /// An operator ends the pause.
    Resume,
    /// A call, sent so long ago, was answered well: ends the pause if it was its probe.
    Answered { sent_ago_us: u64 },
}

/// What everyone is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// The pause of that key (its `Names::pause`), and how long it still lasts; 0 when it was ended.
    Pause { key: String, for_us: u64, generation: u64 },
    /// Seats were handed to this session, under the limit whose seats live at that key (`Names::limits[i]`).
    Seats { key: String, epoch: u64, granted: u64 },
    /// So many workers are live now.
    Workers { count: u32 },
}

/// A reply that no script of ours gives.
#[derive(Debug, thiserror::Error)]
#[error("Redis answered what no script of this version does: {0}")]
pub(crate) struct Garbled(pub(crate) String);

/// The arguments of a script, each a number or a text.
#[derive(Default)]
struct Args(Vec<Vec<u8>>);

impl Args {
    fn text(&mut self, text: impl AsRef<[u8]>) {
        self.0.push(text.as_ref().to_vec());
    }

    /// A number, or 2^53 - 1 for more: a script counts no further.
    fn number(&mut self, number: u64) {
        self.0.push(number.min(MAX_EXACT).to_string().into_bytes());
    }

    fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.number(number));
    }

    /// A limit's kind and numbers.
    fn rule(&mut self, rules: &Rules, margin: Margin, index: usize) {
        let rule = &rules.of(margin)[index];
        self.0.push(vec![rule.letter()]);
        let numbers = rule.numbers(&rules.of(Margin::Default)[index]);
        self.0.extend(numbers.iter().map(|number| number.to_string().into_bytes()));
    }

    fn now(&mut self, now: Option<u64>) {
        self.number(now.unwrap_or(0));
    }
}

/// Numbers in one argument, each a double: an argument of its own costs Redis more than all the rest of it.
#[derive(Default)]
struct Packed(Vec<u8>);

impl Packed {
    fn signed(&mut self, number: i64) {
        self.0.extend_from_slice(&(number as f64).to_le_bytes());
    }

    /// A number, or 2^53 - 1 for more: a script counts no further.
    fn number(&mut self, number: u64) {
        self.signed(number.min(MAX_EXACT) as i64);
    }

    fn numbers(&mut self, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| self.number(number));
    }
}

/// Tells rules of other numbers, so that what is remembered of them is not taken for these.
fn fingerprint(rules: &Rules, margin: Margin) -> u64 {
    let of_margin = rules.of(margin).iter().zip(rules.of(Margin::Default));
    let numbers = of_margin.flat_map(|(rule, wide)| {
        std::iter::once(i64::from(rule.letter())).chain(rule.numbers(wide)).map(|number| number as u64)
    });
    // FNV-1a over whole numbers: it only has to tell the policies of one process.
    numbers.fold(0xcbf2_9ce4_8422_2325, |hash, number| (hash ^ number).wrapping_mul(0x0100_0000_01b3))
}

impl Paused {
    fn numbers(&self) -> [u64; 6] {
        [self.until, self.probe_at, self.probe_every, self.probed, self.drained, self.generation]
    }
}

impl Snapshot {
    fn numbers(&self) -> SmallVec<[u64; 4]> {
        match self {
            Snapshot::Whole(state) => state.numbers(),
            Snapshot::Log { used, tail } => [*used, *tail].into_iter().collect(),
        }
    }
}

impl TripPart<'_> {
    fn rules(&self) -> &[Rule] {
        self.rules.of(self.margin)
    }

    pub(super) fn fingerprint(&self) -> u64 {
        fingerprint(self.rules, self.margin)
    }

    /// What was seen of the states, if it was by these numbers.
    fn seen(&self) -> Option<&ReplyPart> {
        self.seen.filter(|seen| seen.numbers == self.fingerprint())
    }

    fn pack(&self, packed: &mut Packed) {
        let pause = self.seen.map(|seen| seen.pause).unwrap_or_default();
        packed.numbers([self.rules().len() as u64, self.rules.budget_us()]);
        packed.numbers(pause.numbers());
        let seen = self.seen();
        let mut reports = self.seats.iter();
        for (i, (rule, wide)) in self.rules().iter().zip(self.rules.of(Margin::Default)).enumerate() {
            packed.number(u64::from(rule.letter()));
            rule.numbers(wide).iter().for_each(|number| packed.signed(*number));
            if rule.is_seats() {
                let report = reports.next().copied().unwrap_or_default();
                packed.numbers([report.epoch, report.turn, report.seen, report.in_use, report.spare]);
                packed.number(u64::from(report.may_take));
            } else {
                packed.number(seen.map_or(0, |seen| seen.versions[i]));
            }
        }
    }

    fn pack_seen(&self, packed: &mut Packed) {
        let Some(seen) = self.seen() else { return };
        for (state, _) in seen.states.iter().zip(&seen.versions).filter(|(_, version)| **version > 0) {
            let numbers = state.numbers();
            packed.number(numbers.len() as u64);
            packed.numbers(numbers);
        }
    }
}

impl Trip<'_> {
    pub(crate) fn call(&self) -> Call {
        let mut keys = Vec::new();
        for part in self.parts {
            keys.push(part.names.pause.clone().into_bytes());
            let timed = part.rules().iter().zip(&part.names.limits).filter(|(rule, _)| !rule.is_seats());
            keys.extend(timed.map(|(_, name)| name.clone().into_bytes()));
        }
        let mut has_seats = false;
        for part in self.parts {
            for (i, _) in part.rules().iter().enumerate().filter(|(_, rule)| rule.is_seats()) {
                has_seats = true;
                keys.extend(part.names.seats(i).map(String::into_bytes));
            }
        }
        let presence = self.worker.presence.as_deref().filter(|_| has_seats);
        keys.extend(presence.map(|name| name.as_bytes().to_vec()));

        let mut args = Args::default();
        args.0.push(self.quick().unwrap_or_default().0);
        args.0.push(self.packed().0);
        if has_seats {
            args.text(self.worker.session.as_bytes());
            args.text(self.worker.channel.as_bytes());
            args.number(self.worker.lease_us);
        }
        if presence.is_some() {
            args.number(self.worker.born.load(Ordering::Relaxed));
        }
        Call { script: &script::BOOK, keys, args: args.0 }
    }

    fn packed(&self) -> Packed {
        let runs = self.callers.chunk_by(|caller, next| caller.costs == next.costs);
        let mut packed = Packed::default();
        packed.number(self.now.unwrap_or(0));
        packed.number(u64::from(self.forced));
        packed.number(self.parts.len() as u64);
        self.parts.iter().for_each(|part| part.pack(&mut packed));
        packed.number(runs.clone().count() as u64);
        for run in runs {
            packed.number(run.len() as u64);
            packed.numbers(run[0].costs.iter().copied());
            packed.numbers(run.iter().map(|caller| caller.held_us));
        }
        self.parts.iter().for_each(|part| part.pack_seen(&mut packed));
        packed
    }

    /// The numbers of a trip that is about one bucket, not leaky and of small numbers, for callers of one cost.
    fn quick(&self) -> Option<Packed> {
        let ([part], [first, ..]) = (self.parts, self.callers) else { return None };
        let ([rule @ Rule::Gcra(_)], [wide]) = (part.rules(), part.rules.of(Margin::Default)) else {
            return None;
        };
        let [p, r, cap, _, most, hold, ahead, wide_p, wide_r] = rule.numbers(wide)[..] else { return None };
        let is_small = p < 1 << 32 && r < 1 << 24 && most < 1 << 24 && p * most < 1 << 40;
        let is_even = self.callers.iter().all(|caller| caller.costs == first.costs);
        if !is_small
            || !is_even
            || first.costs[0] == 0
            || self.forced
            || hold >= 0
            || (p, r) != (wide_p, wide_r)
        {
            return None;
        }
        let pause = part.seen.map(|seen| seen.pause).unwrap_or_default();
        let seen = part.seen().filter(|seen| seen.versions[0] > 0);
        let fresh_at = seen.map_or(0, |seen| match &seen.states[0] {
            Snapshot::Whole(state) => rule.fresh_at(state).unwrap_or(NEVER),
            Snapshot::Log { .. } => NEVER,
        });
        let mut packed = Packed::default();
        packed.number(self.now.unwrap_or(0));
        packed.numbers([part.rules.budget_us(), pause.until, pause.drained, pause.generation]);
        [p, r, cap, most, ahead].into_iter().for_each(|number| packed.signed(number));
        packed.numbers([seen.map_or(0, |seen| seen.versions[0]), fresh_at]);
        packed.numbers([self.callers.len() as u64, first.costs[0]]);
        packed.numbers(self.callers.iter().map(|caller| caller.held_us));
        Some(packed)
    }

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
                numbers.extend([self.next()?, self.next()?, self.next()?]);
                for _ in 0..numbers[2] {
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

impl Settlement<'_> {
    pub(crate) fn call(&self) -> Call {
        // What a service reports is anybody's number.
        let units = |units: u64| units.min(MAX_EXACT / 4);
        let mut args = Args::default();
        args.now(self.now);
        args.numbers([self.slot, units(self.charged), units(self.used), self.mark.debt_before()]);
        args.rule(self.rules, self.margin, self.index);
        let keys = vec![self.names.limits[self.index].clone().into_bytes()];
        Call { script: &script::SETTLE, keys, args: args.0 }
    }
}

/// A call's keys and arguments: the pause, and the limits that time frees, of which `also` adds more.
fn timed(
    (rules, margin, names): (&Rules, Margin, &Names),
    args: &mut Args,
    mut also: impl FnMut(&mut Args, &Rule, usize),
) -> Vec<Vec<u8>> {
    let mut keys = vec![names.pause.clone().into_bytes()];
    for (i, rule) in rules.of(margin).iter().enumerate().filter(|(_, rule)| !rule.is_seats()) {
        keys.push(names.limits[i].clone().into_bytes());
        args.rule(rules, margin, i);
        also(args, rule, i);
    }
    keys
}

impl GiveBack<'_> {
    pub(crate) fn call(&self) -> Call {
        let mut args = Args::default();
        args.number(self.slot);
        let keys = timed((self.rules, self.margin, self.names), &mut args, |args, rule, i| {
            args.number(self.costs[i]);
            if self.costs[i] > 0 && !matches!(rule, Rule::SlidingLog(_)) {
                for snapshot in [&self.after[i], &self.before[i]] {
                    let numbers = snapshot.numbers();
                    args.number(numbers.len() as u64);
                    args.numbers(numbers);
                }
            }
        });
        Call { script: &script::GIVE_BACK, keys, args: args.0 }
    }

    /// Whether anything was uncharged.
    pub(crate) fn went(reply: &Value) -> bool {
        *reply != Value::Int(0)
    }
}

impl Change<'_> {
    pub(crate) fn call(&self) -> Call {
        let (what, us, every_us) = match self.what {
            What::Pause { for_us, probe_every_us } => ("pause", for_us, probe_every_us),
            What::Drain => ("drain", 0, 0),
            What::Resume => ("resume", 0, 0),
            What::Answered { sent_ago_us } => ("answered", sent_ago_us, 0),
        };
        let mut args = Args::default();
        args.now(self.now);
        args.text(self.worker.channel.as_bytes());
        args.number(self.rules.budget_us());
        args.text(what);
        args.numbers([us, every_us]);
        let keys = timed((self.rules, self.margin, self.names), &mut args, |_, _, _| {});
        Call { script: &script::PAUSE, keys, args: args.0 }
    }
}

impl News {
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(payload).ok()?.splitn(4, ' ');
        let (kind, first, second) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let key = words.next()?.to_owned();
        match kind {
            "p" => Some(News::Pause { key, for_us: first, generation: second }),
            "w" => Some(News::Workers { count: u32::try_from(first).ok()? }),
            "s" => Some(News::Seats { key, epoch: first, granted: second }),
            _ => None,
        }
    }
}
