//! The heartbeat: says that this worker is alive, learns how many are, and has everything renewed that rides on
//! leases.
//!
//! One task for a store, only while a limiter lives that uses it. It ends by leaving the list, so that the others
//! need not wait for a lease to run out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::hub::{HEARTBEAT, Hub, Workers};
use super::link::Link;
use super::news;
use super::script::Script;
use super::wire::{Call, Worker};

static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    let text = include_str!("../../../lua/heartbeat.lua").to_owned();
    let sha = redis::Script::new(&text).get_hash().to_owned();
    Script { text, sha }
});

/// What the heartbeat knows, and whether it beats.
#[derive(Debug, Default)]
pub(super) struct Heart {
    beats: AtomicBool,
    /// Which task is the one; an older one ends.
    task: AtomicU64,
    /// Its runtime ended under it.
    homeless: AtomicBool,
    nudge: Arc<Notify>,
    /// Another limiter wants to hear of its seats.
    pub(super) joined: Arc<Notify>,
    workers: Mutex<Option<Workers>>,
    flaw: Mutex<Option<Arc<str>>>,
}

impl Heart {
    pub(super) fn workers(&self) -> Option<Workers> {
        *self.workers.lock()
    }

    /// Whether the runtime is known to be gone in which the tasks lived.
    pub(super) fn is_homeless(&self) -> bool {
        self.homeless.load(Ordering::Acquire)
    }

    pub(super) fn is_beating(&self) -> bool {
        self.beats.load(Ordering::Acquire)
    }

    /// Instead of with the next heartbeat's time.
    pub(super) fn beat_now(&self) {
        self.nudge.notify_one();
    }

    pub(super) fn flaw(&self) -> Option<Arc<str>> {
        self.flaw.lock().clone()
    }

    pub(super) fn set_flaw(&self, flaw: Option<&str>) {
        *self.flaw.lock() = flaw.map(Arc::from);
    }
}

/// A heartbeat task; however it ends, another may be started then.
struct Beating {
    hub: Weak<Hub>,
    task: u64,
    nudge: Arc<Notify>,
    link: Arc<arc_swap::ArcSwapOption<Link>>,
    leave: Call,
    is_done: bool,
}

impl Hub {
    /// Sees to it that the heart beats and that news is heard, while somebody listens.
    #[inline]
    pub(super) fn tend(&self) {
        if !self.heart.is_beating() {
            self.start_heart();
        }
    }

    #[cold]
    fn start_heart(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.live_listeners().is_empty() || self.heart.beats.swap(true, Ordering::AcqRel) {
            return;
        }
        self.heart.homeless.store(false, Ordering::Release);
        let task = self.heart.task.fetch_add(1, Ordering::AcqRel) + 1;
        let beating = Beating {
            hub: self.me.clone(),
            task,
            nudge: self.heart.nudge.clone(),
            link: self.link.clone(),
            leave: call(self.prefix(), self.worker(), 0),
            is_done: false,
        };
        runtime.spawn(beating.run());
    }

    /// Whoever finds Redis back starts the tasks anew in its own runtime: the old one may be one that nobody runs.
    pub(super) fn start_heart_anew(&self) {
        self.heart.task.fetch_add(1, Ordering::AcqRel);
        self.heart.beats.store(false, Ordering::Release);
        self.heart.nudge.notify_waiters();
        self.start_heart();
    }

    async fn beat(&self) {
        let worker = self.worker();
        let Ok(value) = self.run(&call(self.prefix(), worker, worker.lease_us)).await else { return };
        let Some([_, born, count, rank]) = numbers(&value) else { return };
        if worker.presence.is_some() {
            let before = worker.born.swap(born, Ordering::AcqRel);
            if before != 0 && before != born {
                // All state was lost, and with it what others hold.
                self.settle();
            }
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        // Those whose lease ended, and whom nobody has struck off yet, may still stand before this one.
        let rank = u32::try_from(rank).unwrap_or(u32::MAX).min(count - 1);
        *self.heart.workers.lock() = Some(Workers { count, rank });
    }
}

impl Heart {
    /// Others joined or left. Which of them this one is it hears with its next beat.
    pub(super) fn count(&self, count: u32) {
        if let Some(workers) = &mut *self.workers.lock() {
            workers.count = count.max(workers.rank + 1);
        }
    }
}

impl Beating {
    async fn run(mut self) {
        let _news = news::listen(self.hub.clone());
        while let Some(hub) = self.hub.upgrade() {
            if hub.heart.task.load(Ordering::Acquire) != self.task {
                break;
            }
            if hub.live_listeners().is_empty() {
                hub.heart.beats.store(false, Ordering::Release);
                // One that came meanwhile saw it beating.
                if hub.live_listeners().is_empty() || hub.heart.beats.swap(true, Ordering::AcqRel) {
                    self.leave().await;
                    break;
                }
            }
            if !hub.is_away() {
                hub.beat().await;
                for listener in hub.live_listeners() {
                    listener.beat();
                }
            }
            drop(hub);
            _ = timeout(HEARTBEAT, self.nudge.notified()).await;
        }
        if self.hub.strong_count() == 0 {
            self.leave().await;
        }
        self.is_done = true;
    }

    async fn leave(&self) {
        if let Some(link) = self.link.load_full() {
            _ = timeout(HEARTBEAT, link.run(&self.leave)).await;
        }
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let Some(hub) = self.hub.upgrade()
            && hub.heart.task.load(Ordering::Acquire) == self.task
        {
            hub.heart.homeless.store(true, Ordering::Release);
            hub.heart.beats.store(false, Ordering::Release);
        }
    }
}

fn call(prefix: &str, worker: &Worker, lease_us: u64) -> Call {
    let keys = ["", ":leases", ":joined"];
    Call {
        script: &SCRIPT,
        keys: keys.map(|end| format!("{prefix}:{{workers}}{end}").into_bytes()).into(),
        args: [&*worker.session, &lease_us.to_string(), &*worker.channel]
            .map(|arg| arg.as_bytes().to_vec())
            .into(),
    }
}

fn numbers<const N: usize>(value: &Value) -> Option<[u64; N]> {
    let Value::Array(values) = value else { return None };
    let numbers = values.iter().map(|value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    });
    numbers.collect::<Option<Vec<_>>>()?.try_into().ok()
}
