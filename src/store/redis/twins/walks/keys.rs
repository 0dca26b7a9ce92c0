//! The keys of a walk: which are lost on the way, and what lies in Redis and how long it still lives, beside what the
//! model has.

use std::time::Instant;

use proptest::prelude::*;
use redis::Value;

use super::{Walk, note};
use crate::algorithm::State;

impl Walk<'_> {
    /// A key is gone: for both, or where nobody can tell, for Redis only.
    pub(super) fn lose(&mut self) {
        let mut names = self.model.limits.keys().cloned().collect::<Vec<_>>();
        if self.tidies {
            let pauses = &self.model.pauses;
            let is_paused =
                |name: &String| pauses.keys().any(|pause| name.starts_with(&pause[..pause.len() - 1]));
            names.retain(|name| {
                let kept = &self.model.limits[name];
                kept.rules.iter().all(|rule| rule.is_fresh(&kept.state, self.now)) && !is_paused(name)
            });
        } else {
            names.extend(self.model.pauses.keys().cloned());
        }
        // The order in a map is not the walk's.
        names.sort();
        for name in names {
            if self.tidies || self.rng.u8(0..3) == 0 {
                self.twin.ask(&format!("DEL {name}"));
                if !self.tidies {
                    note(&mut self.told, || format!("lost {name}"));
                    self.model.limits.remove(&name);
                    self.model.pauses.remove(&name);
                }
            }
        }
    }

    /// A log as Redis keeps it: instants and units, oldest first; of what was drained the units, since when, the
    /// window's end and its length, how long before it the first lies and what it yields to; and by how much entries
    /// were moved at most.
    fn entries(&self, name: &str) -> (Vec<(u64, u64)>, [u64; 7]) {
        let elements = self.twin.ask(&format!("LRANGE {name} 0 -1"));
        let elements = redis::from_redis_value::<Vec<Vec<u8>>>(elements).expect("a list of bytes");
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let (head, older) = elements.split_last().expect("a log has a head");
        let (at, total, base) = (number(&head[6..13]), number(&head[13..20]), number(&head[20..27]));
        let before =
            |whole: u64, part: u64, bits: u32| whole - (whole.wrapping_sub(part) & ((1 << bits) - 1));
        let entries = older.iter().map(|element| match head[0] {
            b'l' => (before(at, number(&element[..5]), 40), before(total, number(&element[5..]), 24)),
            _ => (number(&element[..7]), number(&element[7..])),
        });
        let entries = entries.chain((at > 0).then_some((at, total)));
        let units = entries.scan(base, |sum, (at, total)| Some((at, total - std::mem::replace(sum, total))));
        (units.collect(), [34, 41, 48, 55, 62, 69, 76].map(|i| number(&head[i..i + 7])))
    }

    /// Every key expires, and when its state equals a fresh one; a log is what the other log is.
    pub(super) fn expiries(&self, since: Instant) -> Result<(), TestCaseError> {
        let limits = self.model.limits.iter().map(|(name, kept)| (name, kept.expiry.px()));
        let pauses = self.model.pauses.iter().map(|(name, (_, px))| (name, *px));
        for (name, kept) in &self.model.limits {
            if let State::SlidingLog(log) = &kept.state {
                prop_assert_eq!(self.entries(name), log.entries(), "{}", name);
            }
        }
        for (name, px) in limits.chain(pauses) {
            let Value::Int(left) = self.twin.ask(&format!("PTTL {name}")) else { panic!("a number") };
            let passed = since.elapsed().as_millis() as i64 + 1;
            prop_assert!(
                left > 0 && left <= px as i64 && left >= px as i64 - passed,
                "{left} of {px} ms: {name}"
            );
        }
        Ok(())
    }
}
