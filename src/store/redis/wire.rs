//! What goes to Redis and what comes back, in the order in which the scripts read and write it.
//!
//! The only place that knows how the scripts in `lua/` are called: here a call and its arguments, in the files of the
//! folder what they are about. Instants are microseconds of Redis's clock.

mod change;
mod reply;
mod trip;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub(crate) use change::{Change, GiveBack, Settlement, What};
#[cfg(test)]
pub(crate) use reply::Paused;
pub(crate) use reply::{Ended, Reply, ReplyPart, SeatAnswer, Slot, Snapshot};
pub(crate) use trip::{Fate, SeatReport, Trip, TripPart, Waiter};

use super::script::Script;
use crate::algorithm::Rules;
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

/// What everyone is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// The pause of that key (its `Names::pause`), and how long it still lasts; 0 when it was ended.
    Pause { key: String, for_us: u64, generation: u64 },
    /// A call of that session, sent so long ago, was answered with a soft 429, under the key whose pause that is.
    Throttled { key: String, sent_ago_us: u64, session: String },
    /// A call of that session, sent so long ago, was answered well.
    Answered { key: String, sent_ago_us: u64, session: String },
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

impl News {
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(payload).ok()?.splitn(4, ' ');
        let (kind, first, second) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        let key = words.next()?.to_owned();
        let session = second.to_owned();
        match kind {
            "t" => return Some(News::Throttled { key, sent_ago_us: first, session }),
            "a" => return Some(News::Answered { key, sent_ago_us: first, session }),
            _ => {}
        }
        let second = second.parse().ok()?;
        match kind {
            "p" => Some(News::Pause { key, for_us: first, generation: second }),
            "w" => Some(News::Workers { count: u32::try_from(first).ok()? }),
            "s" => Some(News::Seats { key, epoch: first, granted: second }),
            _ => None,
        }
    }
}
