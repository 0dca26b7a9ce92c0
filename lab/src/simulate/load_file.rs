//! `load.toml`: who calls, how often, and what a call is.
//!
//! ```toml
//! workers = 1000            # each makes one call after the other
//! # arrivals = "300/s"      # or: calls come at random, however many are still waiting
//! calls = 1_000_000
//! takes = "20ms to 80ms"    # from a permit to its end
//! keys = 1                  # services, in turn
//! seed = 1
//!
//! [cost]
//! tokens = "500 to 2000"
//!
//! [[pause]]                 # the service asks to be left alone
//! at = "5s"
//! lasts = "3s"
//! ```

use std::collections::BTreeMap;

use forbear::Rate;
use serde::Deserialize;

use super::text::{Cost, Drawn, Takes, Time};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Load {
    pub(crate) workers: usize,
    #[serde(deserialize_with = "arrivals")]
    pub(crate) arrivals: Option<Rate>,
    pub(crate) calls: u64,
    pub(crate) takes: Takes,
    pub(crate) keys: usize,
    pub(crate) seed: u64,
    pub(crate) cost: BTreeMap<String, Cost>,
    pub(crate) pause: Vec<Pause>,
}

/// A time during which the service is to be left alone.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    pub(crate) at: Time,
    pub(crate) lasts: Time,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            workers: 100,
            arrivals: None,
            calls: 10_000,
            takes: Takes(Drawn::always(50_000)),
            keys: 1,
            seed: 1,
            cost: BTreeMap::new(),
            pause: Vec::new(),
        }
    }
}

fn arrivals<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Rate>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_has_its_default() {
        let load = toml::from_str::<Load>("arrivals = \"300/s\"\ncost = { tokens = \"5 to 20\" }").unwrap();
        assert_eq!((load.arrivals, load.calls, load.keys), (Some(Rate::per_second(300)), 10_000, 1));
        assert_eq!(load.cost["tokens"], "5 to 20".parse().unwrap());
        assert!(toml::from_str::<Load>("worker = 3").is_err());
    }
}
