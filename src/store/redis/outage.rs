//! The breaker: knows that Redis is away, so that no call waits for it, and finds out when it is back.
//!
//! While it is open one task makes a new connection, with a new look-up of the address or of the master, and tries
//! whether scripts may write there. Calls never probe.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use super::fault::Fault;
use super::hub::Hub;

const FIRST_PROBE: Duration = Duration::from_millis(100);
const LAST_PROBE: Duration = Duration::from_secs(1);
/// How long a connection may take while nobody waits for it.
const CONNECT: Duration = Duration::from_millis(500);
/// The same where several hosts are asked in turn.
const CONNECT_IN_STEPS: Duration = Duration::from_secs(1);
/// An outage so soon after the last one goes on with its probes' pace.
const SAME: Duration = Duration::from_secs(10);
/// After so long without a probe its runtime does not run.
const STALE: Duration = Duration::from_secs(5);

/// Writes as the scripts do: a server that is read-only, full or restricted says so here, too.
const PROBE: &str = "return redis.call('SET', KEYS[1], ARGV[1], 'PX', 10000)";

#[derive(Debug, Default)]
pub(super) struct Breaker {
    open: AtomicBool,
    state: Mutex<State>,
    /// Which probing task is the one; an older one ends.
    task: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    reason: Option<Arc<str>>,
    /// Since the first connection, or since the last outage ended.
    up_since: Option<Instant>,
    /// Whether the listeners know of the outage.
    is_told: bool,
    /// Between two probes.
    wait: Duration,
    probed_at: Option<Instant>,
    /// A key of the call that failed: in a cluster the others say nothing about its node.
    key: Option<Vec<u8>>,
}

impl Breaker {
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Since when Redis is away, and why.
    pub(super) fn outage(&self) -> Option<(Instant, Arc<str>)> {
        let state = self.state.lock();
        state.since.zip(state.reason.clone()).filter(|_| self.is_open())
    }

    /// Since when it is up, outages apart; `None` before the first connection.
    pub(super) fn up_since(&self) -> Option<Instant> {
        self.state.lock().up_since
    }

    /// A connection was made.
    pub(super) fn came_up(&self) {
        self.state.lock().up_since.get_or_insert_with(Instant::now);
    }
}

/// A probing task; however it ends, another may be started then.
struct Probing {
    hub: Weak<Hub>,
    task: u64,
}

impl Probing {
    /// The hub, while this task is the one and there is something to find out.
    fn hub(&self) -> Option<Arc<Hub>> {
        let hub = self.hub.upgrade()?;
        let is_the_one = hub.breaker.task.load(Ordering::Acquire) == self.task;
        (is_the_one && hub.is_away()).then_some(hub)
    }

    async fn run(self) {
        let Some(hub) = self.hub() else { return };
        let (mut wait, is_told) = {
            let mut state = hub.breaker.state.lock();
            (state.wait, std::mem::replace(&mut state.is_told, true))
        };
        if !is_told {
            hub.tell(false);
        }
        drop(hub);
        loop {
            sleep(wait).await;
            let Some(hub) = self.hub() else { return };
            hub.breaker.state.lock().probed_at = Some(Instant::now());
            match hub.probe_once().await {
                Ok(()) => return hub.turn_back(),
                // The first reason stays: what a probe meets later is mostly its consequence.
                Err(fault) => tracing::debug!("Redis is still away: {}", fault.text()),
            }
            wait = (wait * 2).min(LAST_PROBE);
            hub.breaker.state.lock().wait = wait;
        }
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        if let Some(hub) = self.hub() {
            hub.breaker.state.lock().probed_at = None;
        }
    }
}

impl Hub {
    /// Opens the breaker for what was seen on the connection of that number.
    pub(super) fn turn_away(&self, seen: u64, reason: &str, key: Option<&[u8]>) {
        let mut state = self.breaker.state.lock();
        if self.breaker.is_open() || seen != self.connections() {
            return;
        }
        let again = state.up_since.is_some_and(|since| since.elapsed() < SAME);
        state.wait = if again { (state.wait * 2).clamp(FIRST_PROBE, LAST_PROBE) } else { FIRST_PROBE };
        state.key = key.map(Into::into);
        (state.since, state.reason) = (Some(Instant::now()), Some(reason.into()));
        self.breaker.open.store(true, Ordering::Release);
        // Its sockets close, and what still comes over them is not counted.
        self.link.store(None);
        drop(state);
        tracing::warn!(
            server = ?self.settings().server,
            on_outage = ?self.on_outage(),
            "Redis is away: {reason}"
        );
        self.probe();
    }

    /// Sees to it that somebody probes: its runtime may have ended, or nobody may run it.
    pub(super) fn keep_probing(&self) {
        let probed_at = self.breaker.state.lock().probed_at;
        if probed_at.is_none_or(|at| at.elapsed() > STALE) {
            self.probe();
        }
    }

    fn probe(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let task = self.breaker.task.fetch_add(1, Ordering::AcqRel) + 1;
        self.breaker.state.lock().probed_at = Some(Instant::now());
        runtime.spawn(Probing { hub: self.me.clone(), task }.run());
    }

    /// A new connection, and a script that writes over it.
    async fn probe_once(&self) -> Result<(), Fault> {
        let budget = self.settings().budget;
        let connect = if self.settings().server.takes_steps() { CONNECT_IN_STEPS } else { CONNECT };
        let late = |_| Fault::Broken("no answer".into());
        let link = timeout(connect.max(budget), self.connect()).await.map_err(late)?;
        let link = link.map_err(|error| Fault::of(&error))?;
        let answer = timeout(budget, link.connection.ask(&self.probe_command())).await.map_err(late)?;
        match answer {
            Ok(Value::Okay) => {}
            Ok(_) => return Err(Fault::Refuses("a script was answered by something else".into())),
            Err(error) => return Err(Fault::of(&error)),
        }
        self.adopt(link);
        Ok(())
    }

    fn probe_command(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        let key = self.breaker.state.lock().key.clone();
        cmd.arg(PROBE).arg(1).arg(beside(self.prefix(), key.as_deref())).arg(&*self.worker().session);
        cmd
    }

    /// Closes the breaker.
    fn turn_back(&self) {
        let mut state = self.breaker.state.lock();
        let lasted = state.since.take().map(|since| since.elapsed()).unwrap_or_default();
        (state.reason, state.key, state.probed_at, state.is_told) = (None, None, None, false);
        state.up_since = Some(Instant::now());
        self.breaker.open.store(false, Ordering::Release);
        drop(state);
        tracing::info!(server = ?self.settings().server, "Redis is back after {:.1}s", lasted.as_secs_f64());
        self.start_heart_anew();
        self.tell(true);
    }

    fn tell(&self, up: bool) {
        #[cfg(feature = "metrics")]
        crate::metrics::away(self.prefix(), !up);
        for listener in self.live_listeners() {
            listener.turned(up);
        }
    }
}

/// A key of the probe's own that lies where `key` does.
fn beside(prefix: &str, key: Option<&[u8]>) -> Vec<u8> {
    let mut own = format!("{prefix}:{{probe}}").into_bytes();
    if let Some(key) = key {
        let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
            let length =
                key[open + 1..].iter().position(|byte| *byte == b'}').filter(|length| *length > 0)?;
            Some(&key[open + 1..open + 1 + length])
        });
        own = [prefix.as_bytes(), b":{", tag.unwrap_or(key), b"}:probe"].concat();
    }
    own
}

#[cfg(test)]
mod tests {
    use super::beside;

    #[test]
    fn a_probe_lies_where_the_call_did() {
        assert_eq!(beside("f", None), b"f:{probe}");
        assert_eq!(beside("f", Some(b"f:{abc}:x")), b"f:{abc}:probe");
        assert_eq!(beside("f", Some(b"plain")), b"f:{plain}:probe");
        assert_eq!(beside("f", Some(b"f:{}:x")), b"f:{f:{}:x}:probe", "an empty tag is none");
    }
}
