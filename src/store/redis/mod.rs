//! The store of a fleet: budgets, pauses and seats shared by every process that uses one Redis.
//!
//! What users set up is here; `hub` is what a limiter asks, `wire` what goes to Redis and what comes back.
//! No type of the `redis` crate may show in the public API but where a connection is taken over.

mod fault;
mod health;
mod heartbeat;
pub(crate) mod hub;
mod link;
pub(crate) mod names;
mod news;
mod outage;
pub(crate) mod script;
mod server;
#[cfg(test)]
mod server_for_tests;
#[cfg(test)]
mod tests;
mod trip;
#[cfg(test)]
mod twins;
mod url;
pub(crate) mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use health::Health;
use hub::{Hub, Settings};
pub use server::Existing;
use server::Server;

use super::{AnyStore, Home};
use crate::policy::ConfigError;

/// The default of [`Redis::prefix`].
const PREFIX: &str = "forbear";
/// The default of [`Redis::budget`].
const BUDGET: Duration = Duration::from_millis(250);
/// The most of [`Redis::budget`]: beyond it an outage would be felt as one.
const MAX_BUDGET: Duration = Duration::from_secs(60);

/// What to do while Redis is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnOutage {
    /// Every call goes: better too many calls than none.
    Open,
    /// No call goes: better none than too many.
    Closed,
    /// Each worker keeps to its share of each limit.
    LocalShare {
        /// How many workers share the limits; by default as many as were live when last seen. Without either,
        /// no call goes.
        workers: Option<u32>,
    },
}

impl OnOutage {
    /// Each worker keeps to one `workers`th of each limit, whatever number was last seen.
    pub fn local_share(workers: u32) -> Self {
        Self::LocalShare { workers: Some(workers) }
    }
}

impl Default for OnOutage {
    /// A share by the workers that were live when last seen.
    fn default() -> Self {
        Self::LocalShare { workers: None }
    }
}

/// The store of a fleet: every process that uses one Redis and one [`prefix`](Self::prefix) shares budgets,
/// pauses and seats. Redis 6.2 or later, or Valkey, with scripts allowed.
///
/// Nothing connects before the first call, and a client is built while Redis is away: see
/// [`on_outage`](Self::on_outage) for what then happens. Cheap to clone; clones share the connection and all
/// that is known of the fleet. A setter makes a store of its own, so set up first and clone then.
///
/// ```
/// use forbear::store::{OnOutage, Redis};
///
/// let store = Redis::new("redis://127.0.0.1/")?.prefix("crawler").on_outage(OnOutage::local_share(8));
/// # Ok::<_, forbear::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use = "a store decides nothing until a limiter, a client or a layer is built with it"]
pub struct Redis(Arc<Hub>);

impl Redis {
    /// The Redis at this address:
    ///
    /// - `redis://user:password@host:6379/0`, or `rediss://` with TLS, trusting the platform's certificates
    ///   (or those of `SSL_CERT_FILE`);
    /// - `unix:///path/to/socket?db=0&user=..&pass=..`, or `redis+unix://`;
    /// - `redis-cluster://user:password@a:7000,b:7001`, or `rediss-cluster://`;
    /// - `redis-sentinel://user:password@a:26379,b:26379/master/0`, or `rediss-sentinel://`: the name of the
    ///   master, then the database; user and password are those of Redis, while `?sentinel_user=..` and
    ///   `sentinel_password=..` are those of the sentinels.
    ///
    /// For a Valkey the same with `valkey` in place of `redis` and `valkeys` in place of `rediss`:
    /// `valkey://host`, `valkeys-cluster://a,b`.
    ///
    /// `?protocol=2` keeps to RESP2, for proxies that know no other. What stands in user and password has to be
    /// percent-encoded.
    ///
    /// # Errors
    ///
    /// Only what is wrong with the address itself; the error does not repeat it, for there may be a password in
    /// it. That nobody answers there is an outage.
    pub fn new(url: impl AsRef<str>) -> Result<Self, ConfigError> {
        Ok(Self::at(url::read(url.as_ref())?))
    }

    /// A Redis to which there is a connection: a [`MultiplexedConnection`](redis::aio::MultiplexedConnection),
    /// a [`ConnectionManager`](redis::aio::ConnectionManager) or a
    /// [`ClusterConnection`](redis::cluster_async::ClusterConnection).
    ///
    /// It is shared with whoever else uses it, and it cannot be replaced: a multiplexed connection that broke is
    /// an outage that lasts, a manager comes back by its own rules, which are slower than those of
    /// [`new`](Self::new) and keep a connection to a server that turned into a replica. No second connection is
    /// made to hear what others say, so their pauses arrive with the next decision, and seats that they free
    /// within 3 seconds; how their calls were answered is not heard, so that this worker judges 429s by its own.
    pub fn from_connection(connection: impl Into<Existing>) -> Self {
        Self::at(Server::Existing(connection.into()))
    }

    fn at(server: Server) -> Self {
        Self(Hub::new(Settings {
            server,
            prefix: PREFIX.into(),
            on_outage: None,
            budget: BUDGET,
            fault: None,
        }))
    }

    fn with(self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.0.settings().clone();
        set(&mut settings);
        Self(Hub::new(settings))
    }

    /// With what the names of all keys and channels begin; `forbear` by default. Fleets with different prefixes
    /// share nothing. 1 to 64 letters, digits, `-`, `_`, `.` or `:`; anything else is a [`ConfigError::Store`] where a
    /// limiter, a client or a layer is built with it.
    pub fn prefix(self, prefix: &str) -> Self {
        self.with(|settings| {
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            if prefix.is_empty() || prefix.len() > 64 || !prefix.chars().all(fits) {
                settings.fault("prefix", "must be 1 to 64 letters, digits, `-`, `_`, `.` or `:`");
            }
            settings.prefix = prefix.into();
        })
    }

    /// What to do while Redis is away. By default each worker keeps to its share of each limit; with a server's layer,
    /// which had better answer than not, to the whole of it. A share among no worker is a [`ConfigError::Store`] where a
    /// limiter, a client or a layer is built with it.
    pub fn on_outage(self, on_outage: OnOutage) -> Self {
        self.with(|settings| {
            if on_outage == (OnOutage::LocalShare { workers: Some(0) }) {
                settings.fault("on_outage", "shares the limits among no worker");
            }
            settings.on_outage = Some(on_outage);
        })
    }

    /// How long one trip may take, connecting included, before Redis counts as away; then no call waits until it
    /// is back. 250 ms by default, above 0 and at most a minute; anything else is a
    /// [`ConfigError::Store`] where a limiter, a client or a layer is built with it.
    pub fn budget(self, budget: Duration) -> Self {
        self.with(|settings| {
            if budget.is_zero() || budget > MAX_BUDGET {
                settings.fault("budget", "must be above 0 and at most a minute");
            }
            settings.budget = budget;
        })
    }

    /// How the store stands now: for a health check, an alarm or a log line.
    pub fn health(&self) -> Health {
        self.0.health()
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.0
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.0.settings();
        f.debug_struct("Redis")
            .field("server", &settings.server)
            .field("prefix", &settings.prefix)
            .field("on_outage", &settings.on_outage)
            .field("budget", &settings.budget)
            .finish_non_exhaustive()
    }
}

impl From<Redis> for AnyStore {
    fn from(redis: Redis) -> Self {
        AnyStore(Home::Fleet(redis))
    }
}

impl From<&Redis> for AnyStore {
    fn from(redis: &Redis) -> Self {
        redis.clone().into()
    }
}
