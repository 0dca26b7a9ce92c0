//! The clients that are compared: this library in each way to run it, and what people use today.
//!
//! Each is built as its own documentation shows, and told the same: a rate, a burst, and how often it may try
//! again, which is as often as it likes, so that every job is done in the end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use serde::Serialize;
use tokio::task::JoinSet;

use super::load::{CLIENTS, TASKS};
use super::quota::Kind;
use super::server::{CALL, CLIENT, Server};
use super::{ours, peers};
use crate::redis_server::RedisServer;

/// How often a call is tried at most.
pub(crate) const TRIES: u32 = 1_000;

/// Which client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Client {
    /// Ours: eight processes that share one budget through Redis.
    ForbearRedis,
    /// Ours: the same, told that nothing on the way is late by more than 5 ms.
    ForbearMargin,
    /// Ours: all eight in one process, on one limiter.
    ForbearOneProcess,
    /// Ours: eight processes that know nothing of each other, each with an eighth.
    ForbearShare,
    /// Ours: the same, each with all of it.
    ForbearFull,
    /// reqwest-retry alone.
    Retry,
    /// Sleep as long as Retry-After says, then send again.
    RetryAfter,
    /// reqwest-retry over reqwest-ratelimit over governor, each with all of it.
    GovernorFull,
    /// The same, each with an eighth.
    GovernorShare,
    /// throttle-net and its retry, each with all of it.
    ThrottleNetFull,
    /// The same, each with an eighth.
    ThrottleNetShare,
}

/// How a client is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    Ours,
    Peer,
}

/// What a client is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Belief {
    pub(crate) kind: Kind,
    pub(crate) per_second: u64,
    pub(crate) burst: u64,
}

/// A part of what is believed that one client of the fleet takes for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Full,
    Eighth,
}

impl Part {
    /// The part of a number, rounded down, at least one.
    pub(crate) fn of(self, number: u64) -> u32 {
        let part = match self {
            Part::Full => number,
            Part::Eighth => number / CLIENTS as u64,
        };
        u32::try_from(part.max(1)).expect("the numbers of a fleet are small")
    }
}

/// What became of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Well,
    /// It was given up: what the job does then is to begin again.
    GivenUp,
}

/// One client of the fleet.
#[async_trait]
pub(crate) trait Caller: Send + Sync {
    async fn call(&self, to: &Address) -> Answer;
}

/// Where a call goes, and whose it is.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    pub(crate) url: Arc<str>,
    pub(crate) client: usize,
    pub(crate) call: u32,
}

impl Address {
    /// The head of the request.
    pub(crate) fn headers(&self) -> http::HeaderMap {
        let fields = [(CLIENT, self.client as u32), (CALL, self.call)];
        fields.into_iter().map(|(name, value)| (http::HeaderName::from_static(name), value.into())).collect()
    }
}

impl Client {
    pub(crate) const ALL: [Self; 11] = [
        Self::ForbearRedis,
        Self::ForbearMargin,
        Self::ForbearOneProcess,
        Self::ForbearShare,
        Self::ForbearFull,
        Self::Retry,
        Self::RetryAfter,
        Self::GovernorFull,
        Self::GovernorShare,
        Self::ThrottleNetFull,
        Self::ThrottleNetShare,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ForbearRedis => "forbear, shared in Redis",
            Self::ForbearMargin => "forbear on Redis, margin 5 ms",
            Self::ForbearOneProcess => "forbear, one process",
            Self::ForbearShare => "forbear, an eighth each",
            Self::ForbearFull => "forbear, full limit each",
            Self::Retry => "reqwest-retry",
            Self::RetryAfter => "sleeps Retry-After",
            Self::GovernorFull => "reqwest-retry + governor, full limit each",
            Self::GovernorShare => "reqwest-retry + governor, an eighth each",
            Self::ThrottleNetFull => "throttle-net + retry, full limit each",
            Self::ThrottleNetShare => "throttle-net + retry, an eighth each",
        }
    }

    pub(crate) fn maker(self) -> Maker {
        match self {
            Self::ForbearRedis
            | Self::ForbearMargin
            | Self::ForbearOneProcess
            | Self::ForbearShare
            | Self::ForbearFull => Maker::Ours,
            _ => Maker::Peer,
        }
    }

    /// Whether its budget lives in Redis.
    pub(crate) fn is_on_redis(self) -> bool {
        matches!(self, Self::ForbearRedis | Self::ForbearMargin)
    }

    /// The whole fleet: one caller on each transport. `redis` is there for those that need it.
    pub(crate) async fn fleet(
        self,
        transports: Vec<reqwest::Client>,
        belief: Belief,
        redis: Option<&RedisServer>,
    ) -> Result<Vec<Box<dyn Caller>>> {
        let all = transports.into_iter();
        match self {
            Self::ForbearRedis => ours::on_redis(all, ours::limit(belief), redis).await,
            Self::ForbearMargin => {
                let limit = ours::limit(belief).jitter_margin(Duration::from_millis(5));
                ours::on_redis(all, limit, redis).await
            }
            Self::ForbearOneProcess => ours::one_process(all, belief),
            Self::ForbearShare => all.map(|transport| ours::alone(transport, belief, Part::Eighth)).collect(),
            Self::ForbearFull => all.map(|transport| ours::alone(transport, belief, Part::Full)).collect(),
            Self::Retry => Ok(all.map(peers::retry).collect()),
            Self::RetryAfter => Ok(all.map(peers::retry_after).collect()),
            Self::GovernorFull => Ok(all.map(|it| peers::governor(it, belief, Part::Full)).collect()),
            Self::GovernorShare => Ok(all.map(|it| peers::governor(it, belief, Part::Eighth)).collect()),
            Self::ThrottleNetFull => Ok(all.map(|it| peers::throttle_net(it, belief, Part::Full)).collect()),
            Self::ThrottleNetShare => {
                Ok(all.map(|it| peers::throttle_net(it, belief, Part::Eighth)).collect())
            }
        }
    }
}

/// What is under each client: connections of its own, as many as it has tasks, made beforehand, so that every
/// run begins with the same, and none is judged by how fast this machine connects.
pub(crate) async fn transports(server: &Server) -> Result<Vec<reqwest::Client>> {
    let mut transports = Vec::new();
    let mut greetings = JoinSet::new();
    for _ in 0..CLIENTS {
        let builder = reqwest::Client::builder().no_proxy().pool_idle_timeout(Duration::from_secs(600));
        let transport = builder.build()?;
        for _ in 0..TASKS {
            greetings.spawn(transport.get(server.greeting()).send());
        }
        transports.push(transport);
    }
    while let Some(answer) = greetings.join_next().await {
        answer??.bytes().await?;
    }
    Ok(transports)
}
