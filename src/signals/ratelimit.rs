//! `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers, since they are structured.
//!
//! Drafts 08 and later write Lists of String Items (`"default";r=50;t=30`), draft 07 one Dictionary
//! (`limit=100, remaining=50, reset=5`); earlier ones are read in `quota`. A field that breaks the syntax
//! of RFC 9651 is ignored whole, an item whose members have the wrong type or sign is ignored alone. Two
//! slips are forgiven because the drafts' own examples make them: a name as a Token, and no `r`.

use std::time::Duration;

use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};

use super::Source;
use super::budget::Budget;
use super::field::{Field, Fields};
use super::number::from_millis;
use super::quota::name_unit;

/// Items that are read of one field; more than any service sends.
const MOST: usize = 64;

/// Reads the structured fields, and gives each budget the limit of the policy of its name.
pub(super) fn read(fields: &Fields<'_>, budgets: &mut Vec<Budget>) {
    let states = joined(fields.values(|field| matches!(field, Field::RateLimit)));
    let policies = joined(fields.values(|field| matches!(field, Field::RateLimitPolicy)));
    let mut policies: Vec<Policy> = policies.and_then(|text| list(&text, policy)).unwrap_or_default();
    let Some(states) = states else {
        budgets.extend(policies.into_iter().map(Policy::alone));
        return;
    };
    match list(&states, state) {
        Some(states) => {
            for (key, budget) in states {
                budgets.push(Policy::joined(&mut policies, &key, budget));
            }
        }
        None => budgets.extend(draft_07(&states)),
    }
    budgets.extend(policies.into_iter().filter(|policy| !policy.is_joined).map(Policy::alone));
}

/// The lines of one field as one value (RFC 9651, 4.2); `None` where there are none.
fn joined<'h>(mut lines: impl Iterator<Item = &'h [u8]>) -> Option<Vec<u8>> {
    let mut text = lines.next()?.to_vec();
    for line in lines {
        text.extend_from_slice(b", ");
        text.extend_from_slice(line);
    }
    Some(text)
}

fn list<T>(text: &[u8], read: impl Fn(&Item) -> Option<T>) -> Option<Vec<T>> {
    let entries = Parser::new(text).parse::<List>().ok()?;
    let items = entries.iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => read(item),
        ListEntry::InnerList(_) => None,
    });
    Some(items.take(MOST).collect())
}

/// A name, and the partition key that may tell several of one name apart.
#[derive(PartialEq)]
struct Key {
    name: String,
    partition: Option<Vec<u8>>,
}

impl Key {
    fn read(item: &Item) -> Option<Self> {
        let partition = item.params.get("pk").and_then(|pk| pk.as_byte_sequence().map(<[u8]>::to_vec));
        Some(Self { name: text(&item.bare_item)?.to_owned(), partition })
    }
}

struct Policy {
    key: Key,
    quota: u64,
    window: Option<Duration>,
    unit: String,
    is_joined: bool,
}

impl Policy {
    fn joined(policies: &mut [Policy], key: &Key, mut budget: Budget) -> Budget {
        let same = policies
            .iter()
            .position(|policy| policy.key == *key)
            .or_else(|| policies.iter().position(|policy| policy.key.name == key.name));
        if let Some(policy) = same.map(|index| &mut policies[index]) {
            policy.is_joined = true;
            policy.give(&mut budget);
        }
        budget
    }

    fn alone(self) -> Budget {
        let mut budget = Budget::new(Source::RateLimit);
        budget.name = Some(self.key.name.as_str().into());
        self.give(&mut budget);
        budget
    }

    fn give(&self, budget: &mut Budget) {
        budget.limit = Some(self.quota);
        budget.window = self.window;
        budget.unit = Some(name_unit(&self.unit));
    }
}

fn policy(item: &Item) -> Option<Policy> {
    let window = count(&item.params, "w")?.filter(|window| *window > 0);
    if window.is_none() && item.params.contains_key("w") {
        return None;
    }
    let unit = match item.params.get("qu") {
        None => "requests",
        Some(unit) => text(unit)?,
    };
    Some(Policy {
        key: Key::read(item)?,
        quota: count(&item.params, "q")??,
        window: window.map(seconds),
        unit: unit.to_owned(),
        is_joined: false,
    })
}

fn state(item: &Item) -> Option<(Key, Budget)> {
    let key = Key::read(item)?;
    let mut budget = Budget::new(Source::RateLimit);
    budget.name = Some(key.name.as_str().into());
    budget.remaining = count(&item.params, "r")?;
    budget.reset = count(&item.params, "t")?.map(seconds);
    (!budget.says_nothing()).then_some((key, budget))
}

fn draft_07(text: &[u8]) -> Option<Budget> {
    let members = Parser::new(text).parse::<Dictionary>().ok()?;
    let member = |name: &str| match members.get(name) {
        None => Some(None),
        Some(ListEntry::Item(item)) => natural(&item.bare_item).map(Some),
        Some(ListEntry::InnerList(_)) => None,
    };
    let mut budget = Budget::new(Source::RateLimit);
    budget.limit = member("limit")?;
    budget.remaining = member("remaining")?;
    budget.reset = member("reset")?.map(seconds);
    (!budget.says_nothing()).then_some(budget)
}

/// `None` when the parameter is there and is no count.
fn count(params: &Parameters, name: &str) -> Option<Option<u64>> {
    match params.get(name) {
        None => Some(None),
        Some(value) => natural(value).map(Some),
    }
}

fn natural(value: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(value.as_integer()?)).ok()
}

fn text(value: &BareItem) -> Option<&str> {
    match value {
        BareItem::String(text) => Some(text.as_str()),
        BareItem::Token(text) => Some(text.as_str()),
        _ => None,
    }
}

fn seconds(count: u64) -> Duration {
    from_millis(u128::from(count) * 1_000)
}
