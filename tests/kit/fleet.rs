//! A fleet of worker processes that make calls under one policy, and what limits promise about them.
//!
//! A test target that uses it has a test named `worker`, which calls [`work`]: without a job it does nothing.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

#[path = "worker.rs"]
pub mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forbear::store::{OnOutage, Redis};
use forbear::{Ask, Limit, Limiter, Policy, Rate};
use serde_json::{Value, json};
use worker::Process;

const JOB: &str = "FORBEAR_FLEET_JOB";

/// What one worker does.
#[derive(Clone)]
pub struct Job {
    pub url: String,
    pub policy: &'static str,
    /// In the words of [`limit`].
    pub limits: Vec<&'static str>,
    pub key: &'static str,
    pub tasks: u64,
    /// Calls in all, shared by the tasks.
    pub calls: u64,
    /// Half of the callers give up after so long.
    pub give_up: Option<Duration>,
    /// How long a permit is held.
    pub hold: Duration,
    /// Stops after so long, calls or none.
    pub lasts: Duration,
    pub on_outage: OnOutage,
    /// Every argument before the worker's own binary, such as those of a program that runs it elsewhere.
    pub under: Vec<&'static str>,
}

impl Job {
    pub fn new(url: &str, limits: &[&'static str]) -> Self {
        Self {
            url: url.to_owned(),
            policy: "fleet",
            limits: limits.to_vec(),
            key: "k",
            tasks: 32,
            calls: 2_500,
            give_up: None,
            hold: Duration::ZERO,
            lasts: Duration::from_secs(60),
            on_outage: OnOutage::default(),
            under: Vec::new(),
        }
    }

    fn told(&self) -> Value {
        json!({
            "url": self.url, "policy": self.policy, "limits": self.limits, "key": self.key, "tasks": self.tasks,
            "calls": self.calls, "give_up": self.give_up.map(|time| time.as_millis() as u64),
            "hold": self.hold.as_millis() as u64, "lasts": self.lasts.as_millis() as u64,
            "on_outage": match self.on_outage {
                OnOutage::Open => json!("open"),
                OnOutage::Closed => json!("closed"),
                OnOutage::LocalShare { workers } => json!(workers),
                _ => panic!("not known here"),
            },
        })
    }
}

/// `rate 200 1000` for 200 in 1,000 ms; `bucket 200 1000 20` with its burst; `leaky` with its queue; `fixed`,
/// `log` and `counter` like `rate`; `segments 200 1000 10`; `seats 8`.
pub fn limit(text: &str) -> Limit {
    let mut words = text.split(' ');
    let kind = words.next().expect("a kind");
    let numbers = words.map(|word| word.parse().expect("a number")).collect::<Vec<u64>>();
    let rate = || Rate::new(numbers[0], Duration::from_millis(numbers[1]));
    match kind {
        "rate" => Limit::rate(rate()),
        "bucket" => Limit::token_bucket(rate(), numbers[2]),
        "leaky" => Limit::leaky_bucket(rate(), numbers[2]),
        "fixed" => Limit::fixed_window(rate()),
        "segments" => Limit::sliding_window(rate(), numbers[2] as u32),
        "counter" => Limit::sliding_counter(rate()),
        "log" => Limit::sliding_log(rate()),
        "seats" => Limit::concurrency(numbers[0] as u32),
        other => panic!("no kind of limit: {other}"),
    }
}

/// What a worker did.
#[derive(Debug, Default, Clone)]
pub struct Report {
    /// The slots of its calls on the store's clock, microseconds.
    pub slots: Vec<u64>,
    /// When each call went and when its permit was dropped, microseconds of the machine's clock.
    pub held: Vec<(u64, u64)>,
    /// How long each answered call waited, and when it was answered, microseconds.
    pub waits: Vec<(u64, u64)>,
    pub gave_up: u64,
    pub refused: u64,
}

impl Report {
    /// The longest that a call waited which was answered within a span of the machine's time.
    pub fn slowest(&self, within: std::ops::Range<u64>) -> Duration {
        let waits = self.waits.iter().filter(|(_, at)| within.contains(at));
        Duration::from_micros(waits.map(|(wait, _)| *wait).max().unwrap_or(0))
    }
}

/// The slots that Redis charged for all, in order; those of a share are of the workers' own clocks, which begin in
/// 2005.
pub fn slots_of(reports: &[Report]) -> Vec<u64> {
    const REAL: u64 = 1_500_000_000_000_000;
    let slots = reports.iter().flat_map(|report| &report.slots);
    let mut slots = slots.copied().filter(|slot| *slot > REAL).collect::<Vec<_>>();
    slots.sort_unstable();
    slots
}

/// When each call of all went, in order, microseconds of the machine's clock.
pub fn went(reports: &[Report]) -> Vec<u64> {
    let mut went = reports.iter().flat_map(|report| &report.held).map(|(from, _)| *from).collect::<Vec<_>>();
    went.sort_unstable();
    went
}

/// How many of `times` lie in a span.
pub fn count_in(times: &[u64], span: std::ops::Range<u64>) -> usize {
    times.iter().filter(|time| span.contains(time)).count()
}

/// A worker process; ended when dropped.
pub struct Worker(Process);

impl Worker {
    pub fn start(job: &Job) -> Self {
        Self(Process::start(JOB, &job.told(), &job.under))
    }

    pub fn signal(&self, signal: &str) {
        self.0.signal(signal);
    }

    /// Waits for its end, and reads its report.
    pub fn report(self) -> Report {
        let report = self.0.report();
        let number = |value: &Value| value.as_u64().expect("a number");
        let list = |name: &str| report[name].as_array().expect("a list").clone();
        let pairs = |name: &str| list(name).iter().map(|pair| (number(&pair[0]), number(&pair[1]))).collect();
        Report {
            slots: list("slots").iter().map(number).collect(),
            held: pairs("held"),
            waits: pairs("waits"),
            gave_up: number(&report["gave_up"]),
            refused: number(&report["refused"]),
        }
    }
}

/// Starts `workers` of the same job.
pub fn start(job: &Job, workers: usize) -> Vec<Worker> {
    (0..workers).map(|_| Worker::start(job)).collect()
}

/// Waits for the ends of all, and reads their reports.
pub fn reports(workers: Vec<Worker>) -> Vec<Report> {
    workers.into_iter().map(Worker::report).collect()
}

/// Runs `workers` of the same job side by side.
pub fn run(job: &Job, workers: usize) -> Vec<Report> {
    reports(start(job, workers))
}

/// Microseconds of the machine's clock.
#[allow(clippy::disallowed_methods, reason = "one clock for all processes of a machine")]
pub fn machine_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

/// The worker's side: does nothing without a job.
pub fn work() {
    worker::work(JOB, do_job);
}

async fn do_job(job: Value) -> Value {
    let number = |name: &str| job[name].as_u64().expect("a number");
    let text = |name: &str| job[name].as_str().expect("a text").to_owned();
    let store = Redis::new(text("url")).expect("a good URL");
    let store = store.on_outage(match &job["on_outage"] {
        Value::String(word) if word == "open" => OnOutage::Open,
        Value::String(_) => OnOutage::Closed,
        workers => OnOutage::LocalShare { workers: workers.as_u64().map(|workers| workers as u32) },
    });
    let mut policy = Policy::new(text("policy"));
    for words in job["limits"].as_array().expect("a list") {
        policy = policy.limit(limit(words.as_str().expect("words")));
    }
    let limiter = Limiter::new(policy, store).expect("a good policy");
    let (key, tasks, calls) = (text("key"), number("tasks"), number("calls"));
    let give_up = job["give_up"].as_u64().map(Duration::from_millis);
    let (hold, lasts) = (Duration::from_millis(number("hold")), Duration::from_millis(number("lasts")));
    let left = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(calls));
    let ends = tokio::time::Instant::now() + lasts;
    let each = (0..tasks).map(|_| {
        let (limiter, key, left) = (limiter.clone(), key.clone(), left.clone());
        tokio::spawn(async move {
            let mut report = Report::default();
            let take = || {
                let take = |left: u64| left.checked_sub(1);
                left.fetch_update(SeqCst, SeqCst, take).is_ok()
            };
            while tokio::time::Instant::now() < ends && take() {
                let asked = machine_us();
                let acquire = limiter.acquire(Ask::new(&key));
                let answer = match give_up.filter(|_| fastrand::bool()) {
                    Some(patience) => tokio::time::timeout(patience, acquire).await.ok(),
                    None => tokio::time::timeout_at(ends, acquire).await.ok(),
                };
                if answer.is_some() {
                    let now = machine_us();
                    report.waits.push((now.saturating_sub(asked), now));
                }
                match answer {
                    None => report.gave_up += 1,
                    // A caller that is refused at once takes a breath.
                    Some(Err(_)) => {
                        report.refused += 1;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Some(Ok(permit)) => {
                        let went = machine_us();
                        report.slots.push(permit.slot_us());
                        tokio::time::sleep(hold).await;
                        report.held.push((went, machine_us()));
                        drop(permit);
                    }
                }
            }
            report
        })
    });
    let each = each.collect::<Vec<_>>();
    let mut all = Report::default();
    for task in each {
        let report = task.await.expect("a task ends");
        all.slots.extend(report.slots);
        all.held.extend(report.held);
        all.waits.extend(report.waits);
        (all.gave_up, all.refused) = (all.gave_up + report.gave_up, all.refused + report.refused);
    }
    // What was given back is on its way.
    tokio::time::sleep(Duration::from_millis(50)).await;
    json!({
        "slots": all.slots, "held": all.held, "waits": all.waits, "gave_up": all.gave_up, "refused": all.refused,
    })
}

/// The most that a limit promised to let through, and what it let through, checked against the slots of all
/// workers: an error names the first span that holds more.
pub fn check(words: &str, slots: &[u64]) -> Result<(), String> {
    let mut slots = slots.to_vec();
    slots.sort_unstable();
    let mut parts = words.split(' ');
    let kind = parts.next().expect("a kind");
    let numbers = parts.map(|word| word.parse().expect("a number")).collect::<Vec<u64>>();
    let (n, window) = (numbers[0], numbers.get(1).map_or(0, |ms| ms * 1_000));
    let any_span = |span: u64, most: u64| {
        let mut first = 0;
        for (i, slot) in slots.iter().enumerate() {
            while slots[first] + span <= *slot {
                first += 1;
            }
            if (i - first + 1) as u64 > most {
                return Err(format!("{} in {span} us up to {slot}, {most} promised", i - first + 1));
            }
        }
        Ok(())
    };
    match kind {
        "rate" | "log" => any_span(window, n),
        "bucket" => {
            // In units of a microsecond's repayment: a unit is `window`, a microsecond repays `n`.
            let (mut debt, mut at) = (0_u128, slots.first().copied().unwrap_or(0));
            for slot in &slots {
                debt = debt.saturating_sub(u128::from(slot - at) * u128::from(n)) + u128::from(window);
                at = *slot;
                if debt > u128::from(numbers[2]) * u128::from(window) {
                    return Err(format!("more than the burst and what was earned by {slot}"));
                }
            }
            Ok(())
        }
        "leaky" => match slots.windows(2).find(|pair| (pair[1] - pair[0]) * n < window - n) {
            Some(pair) => Err(format!("{} us between two", pair[1] - pair[0])),
            None => Ok(()),
        },
        "fixed" | "segments" => {
            let segments = numbers.get(2).copied().unwrap_or(1);
            let width = window.div_ceil(segments);
            // Windows open with the first call, and again with the first after a whole window without one.
            let mut counts = BTreeMap::<u64, u64>::new();
            let (mut opened, mut newest) = (0, 0);
            for slot in &slots {
                if opened == 0 || (slot - opened) / width >= newest + segments {
                    opened = *slot;
                    counts.clear();
                }
                newest = (slot - opened) / width;
                *counts.entry(newest).or_default() += 1;
                let inside = counts.range((newest + 1).saturating_sub(segments)..).map(|(_, count)| count);
                let inside = inside.sum::<u64>();
                if inside > n {
                    return Err(format!("{inside} in the window up to {slot}"));
                }
            }
            Ok(())
        }
        // The one before was even, says the rule: never twice the limit, and what it counts is the twins' affair.
        "counter" => any_span(window, 2 * n - 1),
        "seats" => Ok(()),
        other => panic!("no kind of limit: {other}"),
    }
}

/// The most permits that were held at one instant.
pub fn most_at_once(reports: &[Report]) -> usize {
    let held = reports.iter().flat_map(|report| &report.held);
    let mut turns = held.flat_map(|(from, to)| [(*from, 1_i64), (*to, -1)]).collect::<Vec<_>>();
    // One that ends as another begins is not beside it.
    turns.sort_unstable();
    let (mut now, mut most) = (0_i64, 0);
    for (_, turn) in turns {
        now += turn;
        most = most.max(now);
    }
    most as usize
}
