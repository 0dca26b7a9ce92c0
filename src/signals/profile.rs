//! Services whose signals cannot be told from their headers' names alone.
//!
//! Most dialects need no profile: their names are unambiguous and are read for everyone. A [`Profile`]
//! adds what only that service means: a unit, a status, a field of its own, a wait that stands in its
//! documentation. It never makes a wait shorter than the plain reading, save where it knows the
//! unit.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Whose dialect a response is read in; [`Profile::Generic`] by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// What the names of the fields say, and the standards.
    #[default]
    Generic,
    /// A 429 says nothing and means 30 s.
    Airtable,
    /// `x-amzn-RateLimit-Limit` is a rate a second: one request is due after its inverse.
    AmazonSpApi,
    /// A 400 may be a throttle, as `x-amzn-ErrorType` or the body's `__type` tells.
    Aws,
    /// `X-RateLimit` holds JSON.
    Basecamp,
    /// 418 is a ban until `Retry-After`.
    Binance,
    /// `Retry-After` and an exhausted budget both hold; the secondary limit means 60 s at least. GraphQL refuses with
    /// a 200, as its body tells.
    GitHub,
    /// `X-HubSpot-RateLimit-*`: an exhausted window is over after its whole length at the latest.
    HubSpot,
    /// 400 with an exhausted budget, or the code `RATELIMITED` in the body whatever the status, is a throttle.
    Linear,
    /// A 200 with `Retry-After` and a database lag, or the code `maxlag`, is a throttle.
    MediaWiki,
    /// `x-ratelimitbysize-*` and `ratelimitbysize-reset` count tokens.
    Mistral,
    /// 403 is how its limit is told.
    Nvd,
    /// The body repeats the headers of the provider behind it, under `error.metadata.headers`.
    OpenRouter,
    /// `X-Rate-Limit-Reset` is in milliseconds from now.
    Prisjakt,
    /// `X-App-Rate-Limit` and its relatives list `limit:seconds`.
    Riot,
    /// `Sforce-Limit-Info` lists `used/limit`; 403 with the code `REQUEST_LIMIT_EXCEEDED` is a throttle.
    Salesforce,
    /// 403 is how its limit is told.
    SecEdgar,
    /// `X-Shopify-Shop-Api-Call-Limit: used/limit`, and the cost of a GraphQL query in the body.
    Shopify,
    /// A 200 whose body says `ratelimited` is a throttle.
    Slack,
    /// `zendesk-ratelimit-<endpoint>: total=; remaining=; resets=`.
    Zendesk,
}

const NAMES: [(Profile, &str); 20] = [
    (Profile::Generic, "generic"),
    (Profile::Airtable, "airtable"),
    (Profile::AmazonSpApi, "amazon-sp-api"),
    (Profile::Aws, "aws"),
    (Profile::Basecamp, "basecamp"),
    (Profile::Binance, "binance"),
    (Profile::GitHub, "github"),
    (Profile::HubSpot, "hubspot"),
    (Profile::Linear, "linear"),
    (Profile::MediaWiki, "mediawiki"),
    (Profile::Mistral, "mistral"),
    (Profile::Nvd, "nvd"),
    (Profile::OpenRouter, "openrouter"),
    (Profile::Prisjakt, "prisjakt"),
    (Profile::Riot, "riot"),
    (Profile::Salesforce, "salesforce"),
    (Profile::SecEdgar, "sec-edgar"),
    (Profile::Shopify, "shopify"),
    (Profile::Slack, "slack"),
    (Profile::Zendesk, "zendesk"),
];

impl Profile {
    /// Every profile, the generic one first.
    pub fn all() -> impl Iterator<Item = Profile> {
        NAMES.iter().map(|(profile, _)| *profile)
    }

    /// Whether the service may refuse a request to this path with a 200, and say so in its body only.
    #[cfg(feature = "client")]
    pub(crate) fn refuses_with_success(self, path: &str) -> bool {
        match self {
            Self::GitHub | Self::Linear => path.ends_with("/graphql"),
            Self::MediaWiki | Self::Shopify | Self::Slack => true,
            _ => false,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(profile, _)| profile == self).map_or("generic", |(_, name)| name);
        f.pad(name)
    }
}

/// The name is no profile's; [`Profile::all`] lists those there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no such profile; leave it out where a service's headers are read without one")]
#[non_exhaustive]
pub struct UnknownProfile;

impl FromStr for Profile {
    type Err = UnknownProfile;

    /// Reads the name that `Display` writes, whatever its case; `aws-bedrock` and its like are `aws`.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("aws-")) {
            return Ok(Self::Aws);
        }
        let known = NAMES.iter().find(|(_, known)| name.eq_ignore_ascii_case(known));
        known.map(|(profile, _)| *profile).ok_or(UnknownProfile)
    }
}
