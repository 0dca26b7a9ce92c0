//! Worker processes that load one key in a given way.
//!
//! A target that uses it calls [`work`] in a test named `worker`, or first in `main`: without a load it does
//! nothing. It needs the kit's `fleet` beside it.
#![allow(dead_code, unreachable_pub, reason = "each target uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forbear::store::Redis;
use forbear::{Limiter, Policy};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fleet;
use crate::fleet::worker::{self, Process};

const LOAD: &str = "FORBEAR_LOAD";

/// What one worker does.
#[derive(Clone)]
pub struct Load {
    pub url: String,
    /// The limit, in the words of [`fleet::limit`].
    pub words: &'static str,
    /// Limiters in the process, each with a store of its own; all that follows is of each.
    pub limiters: u64,
    /// Tasks that make one call after the other.
    pub tasks: u64,
    /// Instead of tasks: calls begin so many times a second, at random, whether those before have gone or not.
    pub arrive: Option<u64>,
    pub calls: u64,
    /// So many callers of ten give up after so long.
    pub give_up: Option<(u64, Duration)>,
    /// How long a permit is held.
    pub hold: Duration,
    /// Stops after so long, calls or none.
    pub lasts: Duration,
}

impl Load {
    /// 32 tasks without end, for a minute.
    pub fn new(url: &str, words: &'static str) -> Self {
        Self {
            url: url.to_owned(),
            words,
            limiters: 1,
            tasks: 32,
            arrive: None,
            calls: u64::MAX,
            give_up: None,
            hold: Duration::ZERO,
            lasts: Duration::from_secs(60),
        }
    }

    fn told(&self) -> Value {
        let give_up = self.give_up.map(|(of_ten, after)| [of_ten, after.as_millis() as u64]);
        json!({
            "url": self.url, "words": self.words, "limiters": self.limiters, "tasks": self.tasks,
            "arrive": self.arrive, "calls": self.calls, "give_up": give_up,
            "hold": self.hold.as_millis() as u64, "lasts": self.lasts.as_millis() as u64,
        })
    }
}

/// What a worker did.
#[derive(Debug, Default, Clone)]
pub struct Report {
    /// The slots of its calls on the store's clock, and how long each waited, microseconds.
    pub slots: Vec<u64>,
    pub waits: Vec<u64>,
    pub gave_up: u64,
    pub refused: u64,
}

impl Report {
    fn add(&mut self, other: Self) {
        self.slots.extend(other.slots);
        self.waits.extend(other.waits);
        (self.gave_up, self.refused) = (self.gave_up + other.gave_up, self.refused + other.refused);
    }
}

/// The slots of all, in order.
pub fn slots_of(reports: &[Report]) -> Vec<u64> {
    let mut slots = reports.iter().flat_map(|report| report.slots.clone()).collect::<Vec<_>>();
    slots.sort_unstable();
    slots
}

/// A worker process; ended when dropped.
pub struct Worker(Process);

impl Worker {
    pub fn start(load: &Load) -> Self {
        Self(Process::start(LOAD, &load.told(), &[]))
    }

    /// Waits for its end, and reads its report.
    pub fn report(self) -> Report {
        let report = self.0.report();
        let number = |value: &Value| value.as_u64().expect("a number");
        let list = |name: &str| report[name].as_array().expect("a list").iter().map(number).collect();
        Report {
            slots: list("slots"),
            waits: list("waits"),
            gave_up: number(&report["gave_up"]),
            refused: number(&report["refused"]),
        }
    }
}

/// Runs `workers` of the same load side by side.
pub fn run(load: &Load, workers: usize) -> Vec<Report> {
    let all = (0..workers).map(|_| Worker::start(load)).collect::<Vec<_>>();
    all.into_iter().map(Worker::report).collect()
}

/// The worker's side: does nothing without a load. Whether there was one.
pub fn work() -> bool {
    worker::work(LOAD, carry)
}

/// What the callers of one limiter share.
struct Callers {
    limiter: Limiter,
    left: AtomicU64,
    give_up: Option<(u64, Duration)>,
    hold: Duration,
    ends: Instant,
}

impl Callers {
    /// One call less is left, unless none is, or the time is over.
    fn take(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        Instant::now() < self.ends && self.left.fetch_update(SeqCst, SeqCst, take).is_ok()
    }

    async fn call(&self, report: &mut Report) {
        let acquire = self.limiter.acquire("k");
        let begun = Instant::now();
        let gives_up = self.give_up.filter(|(of_ten, _)| fastrand::u64(0..10) < *of_ten);
        let until = gives_up.map_or(self.ends, |(_, after)| self.ends.min(begun + after));
        match tokio::time::timeout_at(until, acquire).await.ok() {
            None => report.gave_up += 1,
            Some(Err(_)) => report.refused += 1,
            Some(Ok(permit)) => {
                report.slots.push(permit.slot_us());
                report.waits.push(begun.elapsed().as_micros() as u64);
                tokio::time::sleep(self.hold).await;
                drop(permit);
            }
        }
    }
}

async fn carry(load: Value) -> Value {
    let number = |name: &str| load[name].as_u64().expect("a number");
    let text = |name: &str| load[name].as_str().expect("a text").to_owned();
    let policy = Policy::new("load").limit(fleet::limit(&text("words")));
    let ends = Instant::now() + Duration::from_millis(number("lasts"));
    let (mut all, mut tasks) = (Report::default(), JoinSet::new());
    for _ in 0..number("limiters") {
        // A machine that is held up by something else is no outage.
        let store = Redis::new(text("url")).expect("a good URL").budget(Duration::from_secs(2));
        let callers = Arc::new(Callers {
            limiter: Limiter::new(policy.clone(), store).expect("a good policy"),
            left: AtomicU64::new(number("calls")),
            give_up: load["give_up"].as_array().map(|pair| {
                let [of_ten, after] = [0, 1].map(|i| pair[i].as_u64().expect("a number"));
                (of_ten, Duration::from_millis(after))
            }),
            hold: Duration::from_millis(number("hold")),
            ends,
        });
        if let Some(arrive) = load["arrive"].as_u64() {
            tasks.spawn(arrivals(callers, arrive));
            continue;
        }
        for _ in 0..number("tasks") {
            let callers = callers.clone();
            tasks.spawn(async move {
                let mut report = Report::default();
                while callers.take() {
                    callers.call(&mut report).await;
                }
                report
            });
        }
    }
    while let Some(report) = tasks.join_next().await {
        all.add(report.expect("a task ends"));
    }
    // What was given back is on its way.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let Report { slots, waits, gave_up, refused } = all;
    json!({ "slots": slots, "waits": waits, "gave_up": gave_up, "refused": refused })
}

/// Calls that begin on their own, `arrive` a second.
async fn arrivals(callers: Arc<Callers>, arrive: u64) -> Report {
    let (mut all, mut calls, mut next) = (Report::default(), JoinSet::new(), Instant::now());
    while callers.take() {
        let callers = callers.clone();
        calls.spawn(async move {
            let mut report = Report::default();
            callers.call(&mut report).await;
            report
        });
        next += Duration::from_secs_f64(-f64::ln(1.0 - fastrand::f64()) / arrive as f64);
        tokio::time::sleep_until(next).await;
    }
    while let Some(report) = calls.join_next().await {
        all.add(report.expect("a call ends"));
    }
    all
}
