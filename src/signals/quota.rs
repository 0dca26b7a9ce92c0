//! Budgets told by one field for each number: the IETF drafts 01 to 06, `X-RateLimit-*` and their kin.
//!
//! Fields of one family and one key make one [`Budget`], and each is used on its own: one that is missing
//! or cannot be read takes nothing from the others. Lists of equal length make a budget for each place;
//! else repeated fields are read the cautious way: the least that is left, the latest reset. A length of
//! time beats an instant, which needs two clocks to agree.

use std::borrow::Cow;
use std::time::Duration;

use super::Source;
use super::budget::{Budget, Standing};
use super::clock::{Clock, Reset};
use super::field::{Family, Field, Fields, Quota, Role};
use super::number::{Count, Decimal, trim, unquote, written_duration};

/// Budgets that are read of one list; more than any service sends.
const MOST: usize = 16;

/// Reads every family of quota fields.
pub(super) fn read(fields: &Fields<'_>, clock: &Clock<'_>, budgets: &mut Vec<Budget>) {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for (field, value) in &fields.lines {
        let Field::Quota(quota) = field else { continue };
        let mut take = |column, value| {
            let index = rows.iter().position(|row| row.is_of(quota, column)).unwrap_or_else(|| {
                rows.push(Row::new(quota, column));
                rows.len() - 1
            });
            rows[index].take(quota.role, trim(value), clock);
        };
        if value.contains(&b',') && items(value).count() == columns(fields, quota, clock) {
            items(value).enumerate().for_each(|(column, item)| take(Some(column), item));
        } else {
            take(None, value);
        }
    }
    budgets.extend(rows.into_iter().filter_map(Row::budget));
}

/// How many budgets a set of fields lists side by side: `0, 1000` left that reset in `1, 1419704`.
fn columns(fields: &Fields<'_>, quota: &Quota<'_>, clock: &Clock<'_>) -> usize {
    let list = |wanted: Role| {
        let is_it =
            |field: Field<'_>| matches!(field, Field::Quota(q) if q.role == wanted && q.is_beside(quota));
        let mut lines = fields.values(is_it);
        lines.next().filter(|_| lines.next().is_none())
    };
    match (list(Role::Remaining), list(Role::Reset).or_else(|| list(Role::ResetAfter))) {
        // A date has a comma of its own.
        (Some(left), Some(reset)) if clock.reset(reset).is_none() => {
            let count = items(left).count();
            if count <= MOST && items(reset).count() == count { count } else { 1 }
        }
        _ => 1,
    }
}

fn items(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',')
}

/// The fields of one budget, while they are gathered.
struct Row<'h> {
    family: Family,
    key: &'h str,
    /// Its place, where the fields list several.
    column: Option<usize>,
    name: Option<&'h str>,
    limit: Option<i64>,
    remaining: Option<i64>,
    used: Option<i64>,
    within: Option<Duration>,
    at: Option<Duration>,
    standing: Option<Standing>,
}

impl<'h> Row<'h> {
    fn new(quota: &Quota<'h>, column: Option<usize>) -> Self {
        Self {
            family: quota.family,
            key: quota.key,
            column,
            name: None,
            limit: None,
            remaining: None,
            used: None,
            within: None,
            at: None,
            standing: None,
        }
    }

    fn is_of(&self, quota: &Quota<'_>, column: Option<usize>) -> bool {
        self.family == quota.family && self.key == quota.key && self.column == column
    }

    fn take(&mut self, role: Role, value: &'h [u8], clock: &Clock<'_>) {
        match role {
            // A fractional limit is a rate, and a rate is no count.
            Role::Limit => {
                let count = Count::parse(value).filter(|count| !count.fractional).map(|count| count.value);
                let both = self.limit.into_iter().chain(count);
                self.limit = both.min_by_key(|limit| u64::try_from(*limit).unwrap_or(u64::MAX));
            }
            Role::Remaining => {
                // Joined as a proxy does it; a comma without a blank may group thousands.
                let joined = items(value).enumerate().filter(|(at, item)| *at == 0 || item.starts_with(b" "));
                let counts = joined.filter_map(|(_, item)| Count::parse(item)).map(|count| count.value);
                self.remaining = counts.chain(self.remaining).min();
            }
            Role::Used => self.used = self.used.max(Count::parse(value).map(|count| count.value)),
            Role::Reset => self.note(value, |text| clock.reset(text)),
            Role::ResetAfter => self.note(value, |text| length(text).map(Reset::In)),
            Role::ResetMillis => self.note(value, |text| clock.reset_millis(text)),
            Role::Standing => self.standing = standing(value).or(self.standing),
            Role::Name => self.name = std::str::from_utf8(value).ok().or(self.name),
            Role::RetryAfter => {}
        }
    }

    /// Notes a reset, or several that were joined, or one with parameters; a date has a comma of its own.
    fn note(&mut self, value: &[u8], read: impl Fn(&[u8]) -> Option<Reset>) {
        let mut note = |reset| match reset {
            Reset::In(time) => self.within = self.within.max(Some(time)),
            Reset::At(time) => self.at = self.at.max(Some(time)),
        };
        match read(value) {
            Some(reset) => note(reset),
            None => items(value).filter_map(|part| read(item(part))).for_each(note),
        }
    }

    fn budget(self) -> Option<Budget> {
        // Whether more may be bought says nothing of what may be asked.
        if self.family == Family::Anthropic && self.key == "unified-overage" {
            return None;
        }
        // Beside others a limit of nothing is how a service writes that there is none (Brave Search).
        if self.column.is_some() && self.limit == Some(0) {
            return None;
        }
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

/// An item without its parameters.
fn item(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| *byte == b';').unwrap_or(text.len());
    trim(&text[..end])
}

/// Seconds, or a length of time with its unit.
fn length(value: &[u8]) -> Option<Duration> {
    let value = unquote(value);
    Decimal::parse(value).map(Decimal::seconds).or_else(|| written_duration(value))
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
    const WINDOWS: [(&str, u64); 8] = [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("hourly", 3_600),
        ("day", 86_400),
        ("daily", 86_400),
        ("week", 604_800),
        ("weekly", 604_800),
    ];
    // Months and years have no fixed length, and `unified` budgets state no unit.
    let (unit, last) = key.rsplit_once('-').unwrap_or(("", key));
    let window = WINDOWS.iter().find(|(name, _)| last == *name).map(|(_, s)| Duration::from_secs(*s));
    let unit =
        if window.is_some() || matches!(last, "month" | "monthly" | "year" | "yearly") { unit } else { key };
    let has_unit = !unit.is_empty() && !unit.starts_with("unified");
    (has_unit.then_some(unit), window)
}

/// The unit's name, without an allocation for the usual ones.
pub(super) fn name_unit(unit: &str) -> Cow<'static, str> {
    const USUAL: [&str; 5] = ["requests", "tokens", "input-tokens", "output-tokens", "content-bytes"];
    let usual = USUAL.iter().find(|usual| unit == **usual);
    usual.map_or_else(|| Cow::Owned(unit.to_owned()), |usual| Cow::Borrowed(*usual))
}
