//! One Redis, as everyone in this process who shares a store sees it: the connection, the time budget of a trip,
//! the breaker, the heartbeat, and what others say.
//!
//! Nothing here may make a call wait longer than its budget, or make a second call wait at all once it is known
//! that Redis is away. The connection and all tasks live in the runtime of the caller who made the connection; a
//! caller who finds them gone, because that runtime ended, makes them anew in its own.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::RedisError;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::health::Standing;
use super::heartbeat::Heart;
use super::link::Link;
use super::outage::Breaker;
use super::server::Server;
use super::wire::{News, Worker};
use super::{Health, OnOutage};
use crate::clock;
use crate::policy::ConfigError;

/// How often leases are renewed.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(3);
/// How long what a worker holds outlives it.
pub(super) const LEASE: Duration = Duration::from_secs(10);
/// Between two log lines about calls that failed for what they asked.
const COMPLAINTS: Duration = Duration::from_secs(60);

/// Redis does not answer, or not in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Away;

/// Who has to hear what happens at the store. Called on the store's runtime; must not block.
pub(crate) trait Listener: Send + Sync {
    /// What others said.
    fn news(&self, news: &News);
    /// A heartbeat: what rides on leases is to be renewed.
    fn beat(&self);
    /// Redis went away, or came back.
    fn turned(&self, up: bool);
}

/// The live workers of a fleet, as last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Workers {
    pub(crate) count: u32,
    /// This worker's place among them, from 0.
    pub(crate) rank: u32,
}

/// What a store was set up with.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) server: Server,
    pub(super) prefix: Box<str>,
    /// As stated, if it was.
    pub(super) on_outage: Option<OnOutage>,
    pub(super) budget: Duration,
    pub(super) fault: Option<ConfigError>,
}

impl Settings {
    /// Keeps the first fault.
    pub(super) fn fault(&mut self, field: &'static str, fault: &str) {
        self.fault.get_or_insert_with(|| ConfigError::Store { field, fault: fault.to_owned() });
    }
}

pub(crate) struct Hub {
    pub(super) me: Weak<Hub>,
    settings: Settings,
    worker: Worker,
    pub(super) link: Arc<ArcSwapOption<Link>>,
    /// Connections made so far.
    number: AtomicU64,
    /// The one that broke last, if no call was answered since.
    pub(super) broken: AtomicU64,
    /// Held by the one who connects.
    pub(super) connecting: tokio::sync::Mutex<()>,
    home: Mutex<Option<Handle>>,
    /// Until when others may not have reported yet.
    settled_at: AtomicU64,
    pub(super) breaker: Breaker,
    pub(super) heart: Heart,
    pub(super) listeners: Mutex<Vec<Weak<dyn Listener>>>,
    complained: Mutex<Option<Instant>>,
    /// Whether a server's layer limits its callers with it.
    serves: AtomicBool,
    /// Limiters so far.
    joined: AtomicU64,
}

impl Hub {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        let presence = settings.server.is_one().then(|| format!("{}:{{workers}}", settings.prefix).into());
        let worker = Worker {
            session: session(),
            channel: format!("{}:news:", settings.prefix).into(),
            lease_us: clock::micros(LEASE),
            presence,
            born: Arc::default(),
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            settings,
            worker,
            link: Arc::default(),
            number: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            connecting: tokio::sync::Mutex::default(),
            home: Mutex::default(),
            settled_at: AtomicU64::new(0),
            breaker: Breaker::default(),
            heart: Heart::default(),
            listeners: Mutex::default(),
            complained: Mutex::default(),
            serves: AtomicBool::new(false),
            joined: AtomicU64::new(0),
        })
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The first fault of the settings, for whoever builds a limiter with this store.
    pub(crate) fn fault(&self) -> Option<ConfigError> {
        self.settings.fault.clone()
    }

    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// One of several limiters that count seats of their own in this process.
    pub(crate) fn join(&self) -> Worker {
        let number = self.joined.fetch_add(1, Ordering::AcqRel);
        self.heart.joined.notify_one();
        let Worker { channel, lease_us, presence, born, .. } = &self.worker;
        Worker {
            session: self.joined_as(number).into(),
            channel: channel.clone(),
            lease_us: *lease_us,
            presence: presence.clone(),
            born: born.clone(),
        }
    }

    fn joined_as(&self, number: u64) -> String {
        format!("{}.{number}", self.worker.session)
    }

    /// The channels on which those from `first` on hear of their seats, and how many have joined.
    pub(super) fn channels_from(&self, first: u64) -> (Vec<String>, u64) {
        let joined = self.joined.load(Ordering::Acquire);
        let own = |number| format!("{}{}", self.worker.channel, self.joined_as(number));
        ((first..joined).map(own).collect(), joined)
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    /// A server's layer limits its callers with this store: unless something else is stated, it goes on by itself while
    /// Redis is away, within the whole limits.
    pub(crate) fn serve(&self) {
        self.serves.store(true, Ordering::Relaxed);
    }

    /// Whether calls go on at once while Redis is away, as far as this process's own whole limits let them.
    pub(crate) fn is_open_with_cap(&self) -> bool {
        self.settings.on_outage.is_none() && self.serves.load(Ordering::Relaxed)
    }

    pub(crate) fn on_outage(&self) -> OnOutage {
        let unstated =
            || if self.is_open_with_cap() { OnOutage::local_share(1) } else { OnOutage::default() };
        self.settings.on_outage.unwrap_or_else(unstated)
    }

    pub(crate) fn health(&self) -> Health {
        let standing = match self.breaker.outage() {
            Some((since, reason)) => Standing::Away { lasted: since.elapsed(), reason },
            None => match self.breaker.up_since() {
                Some(since) => Standing::Up { lasted: since.elapsed() },
                None => Standing::Unasked,
            },
        };
        let flaw =
            self.settings.server.cannot_replace().filter(|_| matches!(standing, Standing::Away { .. }));
        Health {
            standing,
            workers: self.workers().map(|workers| workers.count),
            flaw: flaw.map(Arc::from).or_else(|| self.heart.flaw()),
        }
    }

    /// Whether the breaker is open: nothing is asked.
    pub(crate) fn is_away(&self) -> bool {
        self.breaker.is_open()
    }

    /// The workers last seen; `None` before the first heartbeat.
    pub(crate) fn workers(&self) -> Option<Workers> {
        self.heart.workers()
    }

    /// Whether parts whose keys lie in different cluster slots can be decided in one step.
    pub(crate) fn is_one_server(&self) -> bool {
        self.settings.server.is_one()
    }

    /// Whether so little time has passed since the connection was made, or made again after it broke, that
    /// others may not have reported their seats yet.
    pub(crate) fn is_settling(&self) -> bool {
        clock::now_us() < self.settled_at.load(Ordering::Relaxed)
    }

    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
        drop(listeners);
        if self.link.load().is_some() {
            self.tend();
        }
    }

    /// Makes a connection that nobody uses yet.
    pub(super) async fn connect(&self) -> Result<Link, RedisError> {
        Link::make(&self.settings.server, self.connections() == 0).await
    }

    /// Lets everyone use a connection.
    pub(super) fn adopt(&self, mut link: Link) -> Arc<Link> {
        link.number = self.number.fetch_add(1, Ordering::AcqRel) + 1;
        if link.settles {
            self.settle();
        }
        self.breaker.came_up();
        let link = Arc::new(link);
        self.link.store(Some(link.clone()));
        *self.home.lock() = Handle::try_current().ok();
        if self.heart.is_beating() {
            self.heart.beat_now();
        }
        self.tend();
        link
    }

    /// Others may not have reported yet what they hold, for as long as a heartbeat of theirs takes.
    pub(super) fn settle(&self) {
        self.settled_at.store(clock::now_us() + clock::micros(HEARTBEAT), Ordering::Relaxed);
    }

    /// The connections made so far.
    pub(super) fn connections(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Runs a task where the connection lives, from wherever this is called, also outside of any runtime. If
    /// that runtime has ended, nothing is done: leases run out.
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let home = self.home.lock().clone().filter(|_| !self.heart.is_homeless());
        if let Some(runtime) = home.or_else(|| Handle::try_current().ok()) {
            runtime.spawn(task);
        }
    }

    pub(super) fn live_listeners(&self) -> Vec<Arc<dyn Listener>> {
        let mut listeners = self.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.iter().filter_map(Weak::upgrade).collect()
    }

    /// A call that failed for what it asked, such as of a key that holds something else: said once a minute.
    pub(super) fn complain(&self, text: &str) {
        let mut complained = self.complained.lock();
        if complained.is_none_or(|at| at.elapsed() > COMPLAINTS) {
            *complained = Some(Instant::now());
            tracing::warn!(server = ?self.settings.server, "a call to Redis failed: {text}");
        }
    }
}

/// Random by what the system gave this process, so that two processes never share a name.
fn session() -> Box<str> {
    let state = RandomState::new();
    format!("{:016x}{:08x}", state.hash_one(std::process::id()), fastrand::u32(..)).into()
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.heart.beat_now();
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("server", &self.settings.server).finish_non_exhaustive()
    }
}
