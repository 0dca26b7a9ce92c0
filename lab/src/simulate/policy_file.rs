//! `policy.toml`: the limits that you are about to state in your program, in the same words.
//!
//! ```toml
//! name = "api"
//! limits = ["500/s burst 50", "64 at once"]
//! max_wait = "30s"
//!
//! [[limit]]                 # the algorithms that have no short form
//! kind = "sliding-log"
//! rate = "20k/min"
//! ```

use std::time::Duration;

use anyhow::{Context, Result, bail};
use forbear::{Limit, Policy, Rate};
use serde::Deserialize;

use super::text::Time;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyFile {
    name: Option<String>,
    #[serde(default)]
    limits: Vec<String>,
    #[serde(default)]
    limit: Vec<LimitTable>,
    max_wait: Option<Time>,
    max_waiting: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
struct LimitTable {
    kind: Kind,
    rate: Option<String>,
    burst: Option<u64>,
    queue: Option<u64>,
    segments: Option<u32>,
    seats: Option<u32>,
    unit: Option<String>,
    name: Option<String>,
    jitter_margin: Option<Time>,
    share: Option<f64>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Rate,
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingCounter,
    SlidingLog,
    Concurrency,
}

impl PolicyFile {
    /// Of these limits, as on the command line.
    pub(crate) fn of(limits: &[String], max_wait: Option<Time>) -> Self {
        Self { limits: limits.to_vec(), max_wait, ..Self::default() }
    }

    pub(crate) fn policy(&self) -> Result<Policy> {
        let mut policy = Policy::new(self.name.as_deref().unwrap_or("simulated"));
        for text in &self.limits {
            policy = policy.limit(text.parse::<Limit>()?);
        }
        for table in &self.limit {
            policy = policy.limit(table.limit()?);
        }
        if policy.limits().is_empty() {
            bail!("the policy states no limit: `limits = [\"500/min\"]`, or `--limit 500/min`");
        }
        if let Some(Time(max_wait)) = self.max_wait {
            policy = policy.max_wait(max_wait);
        }
        if let Some(max_waiting) = self.max_waiting {
            policy = policy.max_waiting(max_waiting);
        }
        Ok(policy)
    }
}

impl LimitTable {
    fn limit(&self) -> Result<Limit> {
        let rate = || -> Result<Rate> {
            let text = self.rate.as_deref().with_context(|| self.lacks("rate"))?;
            Ok(text.parse()?)
        };
        let limit = match self.kind {
            Kind::Rate => Limit::rate(rate()?),
            Kind::TokenBucket => {
                Limit::token_bucket(rate()?, self.burst.with_context(|| self.lacks("burst"))?)
            }
            Kind::LeakyBucket => {
                Limit::leaky_bucket(rate()?, self.queue.with_context(|| self.lacks("queue"))?)
            }
            Kind::FixedWindow => Limit::fixed_window(rate()?),
            Kind::SlidingWindow => {
                Limit::sliding_window(rate()?, self.segments.with_context(|| self.lacks("segments"))?)
            }
            Kind::SlidingCounter => Limit::sliding_counter(rate()?),
            Kind::SlidingLog => Limit::sliding_log(rate()?),
            Kind::Concurrency => Limit::concurrency(self.seats.with_context(|| self.lacks("seats"))?),
        };
        let limit = self.unit.iter().fold(limit, |limit, unit| limit.unit(unit));
        let limit = self.name.iter().fold(limit, |limit, name| limit.named(name));
        let margin = self.jitter_margin.map_or(Duration::ZERO, |margin| margin.0);
        let limit = if margin.is_zero() { limit } else { limit.jitter_margin(margin) };
        Ok(self.share.into_iter().fold(limit, Limit::share))
    }

    fn lacks(&self, field: &str) -> String {
        format!("a limit of kind {:?} needs `{field}`", self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_forms_make_one_policy() {
        let text = r#"
            name = "api"
            limits = ["500/s burst 50", "64 at once"]
            max_wait = "30s"
            [[limit]]
            kind = "sliding-log"
            rate = "20k/min"
        "#;
        let policy = toml::from_str::<PolicyFile>(text).unwrap().policy().unwrap();
        let expected = Policy::new("api")
            .limit("500/s burst 50")
            .limit("64 at once")
            .limit(Limit::sliding_log(Rate::per_minute(20_000)))
            .max_wait(Duration::from_secs(30));
        assert_eq!(policy, expected);
    }

    #[test]
    fn what_is_missing_or_unknown_is_said() {
        let fault = |text: &str| match toml::from_str::<PolicyFile>(text) {
            Ok(file) => file.policy().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(fault("").contains("states no limit"));
        assert!(fault("[[limit]]\nkind = \"leaky-bucket\"\nrate = \"10/s\"").contains("needs `queue`"));
        assert!(fault("limit_s = []").contains("unknown field"));
        assert!(fault("limits = [\"ten/s\"]").contains("ten"));
    }
}
