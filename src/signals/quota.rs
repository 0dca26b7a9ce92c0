//! Budgets told by one field for each number: the IETF drafts 01 to 06, `X-RateLimit-*` and their kin.
//!
//! Fields of one family and one key make one [`Budget`], and each is used on its own: one that is missing
//! or cannot be read takes nothing from the others. Repeated fields are read the cautious way: the least
//! that is left, the latest reset. A length of time beats an instant, which needs two clocks to agree.

use std::borrow::Cow;
use std::time::Duration;

use super::budget::{Budget, Standing};
use super::clock::{Clock, Reset};
use super::field::{Family, Field, Fields, Quota, Role};
use super::number::{Count, Decimal, go_duration, trim, unquote};
use super::{Profile, Source};

/// Reads every family of quota fields.
pub(super) fn read(profile: Profile, fields: &Fields<'_>, clock: &Clock<'_>, budgets: &mut Vec<Budget>) {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (field, value) in &fields.lines {
        if let Field::Quota(quota) = field {
            let index = rows.iter().position(|row| row.is_of(quota)).unwrap_or_else(|| {
                rows.push(Row::new(quota));
                rows.len() - 1
            });
            rows[index].take(profile, quota.role, trim(value), clock);
        }
    }
    budgets.extend(rows.into_iter().filter_map(Row::budget));
}

/// The fields of one budget, while they are gathered.
struct Row<'h> {
    family: Family,
    key: &'h str,
    name: Option<&'h str>,
    limit: Option<i64>,
    remaining: Option<i64>,
    used: Option<i64>,
    within: Option<Duration>,
    at: Option<Duration>,
    standing: Option<Standing>,
}

impl<'h> Row<'h> {
    fn new(quota: &Quota<'h>) -> Self {
        Self {
            family: quota.family,
            key: quota.key,
            name: None,
            limit: None,
            remaining: None,
            used: None,
            within: None,
            at: None,
            standing: None,
        }
    }

    fn is_of(&self, quota: &Quota<'_>) -> bool {
        self.family == quota.family && self.key == quota.key
    }

    fn take(&mut self, profile: Profile, role: Role, value: &'h [u8], clock: &Clock<'_>) {
        match role {
            // A fractional limit is a rate, and a rate is no count.
            Role::Limit => {
                self.limit = self.limit.or(Count::parse(value).filter(|c| !c.fractional).map(|c| c.value));
            }
            Role::Remaining => {
                self.remaining = least(self.remaining, Count::parse(value).map(|count| count.value));
            }
            Role::Used => self.used = self.used.max(Count::parse(value).map(|count| count.value)),
            Role::Reset => {
                let family = self.family;
                let read = |text| reset(profile, family, text, clock);
                let mut note = |reset| match reset {
                    Reset::In(time) => self.within = self.within.max(Some(time)),
                    Reset::At(time) => self.at = self.at.max(Some(time)),
                };
                match read(value) {
                    Some(reset) => note(reset),
                    // Several that were joined, or one with parameters; a date has a comma of its own.
                    None => {
                        value.split(|byte| *byte == b',').filter_map(|part| read(item(part))).for_each(note)
                    }
                }
            }
            Role::ResetAfter => self.within = self.within.max(length(value)),
            Role::Standing => self.standing = standing(value).or(self.standing),
            Role::Name => self.name = std::str::from_utf8(value).ok().or(self.name),
            Role::RetryAfter => {}
        }
    }

    fn budget(self) -> Option<Budget> {
        // -1 for both is how some services write that they do not know; their reset means nothing then.
        let is_unlimited = self.limit.is_some_and(|limit| limit < 0);
        if is_unlimited && self.remaining.is_none_or(|remaining| remaining < 0) {
            return None;
        }
        let limit = self.limit.and_then(|limit| u64::try_from(limit).ok());
        let unused = match (limit, self.used.map(u64::try_from)) {
            (Some(limit), Some(Ok(used))) => Some(limit.saturating_sub(used)),
            _ => None,
        };
        let source = if self.family == Family::Ietf { Source::RateLimit } else { Source::Vendor };
        let (unit, window) = unit_and_window(self.key);
        let reset = self.within.or(self.at);
        let budget = Budget {
            name: self.name.or((!self.key.is_empty()).then_some(self.key)).map(Into::into),
            unit: unit.map(name_unit),
            limit,
            remaining: self.remaining.map(|left| u64::try_from(left).unwrap_or(0)).or(unused),
            reset,
            window,
            // A verdict without a reset is about something else, such as paid overage.
            standing: self.standing.filter(|_| reset.is_some()),
            source,
        };
        (!budget.says_nothing()).then_some(budget)
    }
}

fn least(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    one.into_iter().chain(other).min()
}

fn reset(profile: Profile, family: Family, value: &[u8], clock: &Clock<'_>) -> Option<Reset> {
    if profile == Profile::Prisjakt && family == Family::X {
        return Decimal::parse(unquote(value)).map(|number| Reset::In(number.millis()));
    }
    clock.reset(value)
}

/// An item without its parameters.
fn item(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b';').unwrap_or(text.len());
    trim(&text[..end])
}

/// Seconds, or a length of time with its unit.
fn length(value: &[u8]) -> Option<Duration> {
    let value = unquote(value);
    Decimal::parse(value).map(Decimal::seconds).or_else(|| go_duration(value))
}

fn standing(value: &[u8]) -> Option<Standing> {
    if value.eq_ignore_ascii_case(b"rejected") {
        Some(Standing::Rejected)
    } else {
        value.starts_with(b"allowed").then_some(Standing::Allowed)
    }
}

/// Splits `tokens-minute` into what is counted and over which period.
fn unit_and_window(key: &str) -> (Option<&str>, Option<Duration>) {
    const WINDOWS: [(&str, u64); 5] =
        [("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400), ("week", 604_800)];
    // Months and years have no fixed length, and `unified` budgets state no unit.
    let (unit, last) = key.rsplit_once('-').unwrap_or(("", key));
    let window = WINDOWS.iter().find(|(name, _)| last == *name).map(|(_, s)| Duration::from_secs(*s));
    let unit = if window.is_some() || matches!(last, "month" | "year") { unit } else { key };
    let has_unit = !unit.is_empty() && !unit.starts_with("unified");
    (has_unit.then_some(unit), window)
}

/// The unit's name, without an allocation for the usual ones.
pub(super) fn name_unit(unit: &str) -> Cow<'static, str> {
    const USUAL: [&str; 5] = ["requests", "tokens", "input-tokens", "output-tokens", "content-bytes"];
    let usual = USUAL.iter().find(|usual| unit == **usual);
    usual.map_or_else(|| Cow::Owned(unit.to_owned()), |usual| Cow::Borrowed(*usual))
}
