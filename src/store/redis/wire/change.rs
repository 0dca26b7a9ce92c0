//! What is told to Redis beside trips: corrections of a charge, bookings that nobody wants, and changes of a pause.
//!
//! Twin of the tables of arguments at the top of `lua/settle.lua`, `lua/give_back.lua` and `lua/pause.lua`. What gives
//! something back must be sent once.

use redis::Value;

use super::{Args, Call, Fate, Snapshot, Worker};
use crate::algorithm::{Mark, Rule, Rules};
use crate::limit::{MAX_EXACT, Margin};
use crate::store::redis::names::Names;
use crate::store::redis::script;

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
    /// Calls that the service refused.
    pub(crate) declined: &'a [Fate],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Holds the key for that long from now, or longer; never shorter.
    Pause { for_us: u64, probe_every_us: u64 },
    /// Empties what is not booked ahead.
    Drain,
    /// A call, sent so long ago, was answered with a soft 429 that asks for so long a wait: nothing stays saved up.
    /// Everyone is told.
    Throttled { sent_ago_us: u64, wait_us: u64 },
    /// An operator ends the pause.
    Resume,
    /// A call, sent so long ago, was answered well: ends the pause if it was its probe. Everyone is told.
    Answered { sent_ago_us: u64 },
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
            What::Throttled { sent_ago_us, wait_us } => ("throttled", sent_ago_us, wait_us),
            What::Resume => ("resume", 0, 0),
            What::Answered { sent_ago_us } => ("answered", sent_ago_us, 0),
        };
        let mut args = Args::default();
        args.now(self.now);
        args.text(self.worker.channel.as_bytes());
        args.number(self.rules.budget_us());
        args.text(what);
        args.numbers([us, every_us]);
        args.text(self.worker.session.as_bytes());
        let keys = timed((self.rules, self.margin, self.names), &mut args, |args, _, i| {
            args.number(self.declined.len() as u64);
            self.declined.iter().for_each(|call| args.numbers([call.slot, call.costs[i]]));
        });
        Call { script: &script::PAUSE, keys, args: args.0 }
    }
}
