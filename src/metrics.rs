//! What an operator watches, through the facade of the `metrics` crate: refusals and saturation, which are different
//! signals, and a store that is away.
//!
//! Labels are names that the program itself gave: policies, limits. Never a key.

use metrics::{Key, Label, Level, Metadata};

/// Calls that may go, by policy.
const GRANTED: &str = "forbear_granted_total";
/// Calls that may not, by policy, limit and kind.
const REFUSED: &str = "forbear_refused_total";
/// 1 while a store that a fleet shares does not answer, by its prefix.
#[cfg(feature = "redis")]
const AWAY: &str = "forbear_store_away";

/// What [`granted`] counts for a policy: made once, so that a call that does not wait allocates nothing.
pub(crate) fn granted_key(policy: &str) -> Key {
    Key::from_parts(GRANTED, vec![Label::new("policy", policy.to_owned())])
}

pub(crate) fn granted(policy: &Key) {
    static ABOUT: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
    metrics::with_recorder(|recorder| recorder.register_counter(policy, &ABOUT)).increment(1);
}

pub(crate) fn refused(policy: &str, limit: Option<&str>, kind: &'static str) {
    let limit = limit.unwrap_or_default().to_owned();
    metrics::counter!(REFUSED, "policy" => policy.to_owned(), "limit" => limit, "kind" => kind).increment(1);
}

#[cfg(feature = "redis")]
pub(crate) fn away(prefix: &str, is_away: bool) {
    metrics::gauge!(AWAY, "prefix" => prefix.to_owned()).set(if is_away { 1.0 } else { 0.0 });
}
