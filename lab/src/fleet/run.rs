//! One run: a fleet does its job against a server, and what came of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{Address, Answer, Belief, Caller, Client, transports};
use super::load::{CLIENTS, Load, RETRY_AFTER_US, TASKS};
use super::quota::Kind;
use super::server::{Decided, Server};
use crate::figures::{Bracket, busiest, jain, per_bin, percentile};
use crate::redis_server::RedisServer;

/// A run that needs longer than so often the ideal is cut there.
pub(crate) const CUT: u32 = 3;
/// The one run whose end was measured before, so that it is seen again.
const CUT_LATE: u32 = 10;
/// How finely admissions are kept.
pub(crate) const BIN_US: u64 = 100_000;
/// So often is looked whether a timer is late.
const TICK: Duration = Duration::from_millis(2);

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Plan {
    pub(crate) client: Client,
    pub(crate) server: Kind,
    pub(crate) load: Load,
    pub(crate) calls: u32,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    pub(crate) plan: Plan,
    pub(crate) ideal_us: u64,
    /// From the start to the last success.
    pub(crate) time_us: u64,
    pub(crate) time_over_ideal: f64,
    /// Calls that succeeded: all, unless the run was cut.
    pub(crate) done: u32,
    pub(crate) cut: bool,
    /// Answers of 429.
    pub(crate) refused: u32,
    pub(crate) refused_per_success: f64,
    /// Sends of a call that came before the wait of its last 429 was over.
    pub(crate) early: u32,
    /// Times that a client gave a call up and the job began it again.
    pub(crate) given_up: u32,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    /// Of the rates at which clients with work got theirs done.
    pub(crate) jain: f64,
    /// Calls to Redis for each success; none where there is no Redis.
    pub(crate) trips_per_call: Option<f64>,
    /// The most that the server admitted in any second.
    pub(crate) most_in_a_second: usize,
    /// How late the machine was at most with what was due: what it does besides is in the figures.
    pub(crate) stalled_us: u64,
    /// By tenths of a second.
    pub(crate) admissions: Vec<u32>,
}

/// What the tasks of one client share.
struct Worker {
    caller: Box<dyn Caller>,
    client: usize,
    url: Arc<str>,
    calls: u32,
    /// The first of its calls, and the next one.
    first: u32,
    next: AtomicU32,
    start: Instant,
    tally: Mutex<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    took_us: Vec<u64>,
    given_up: u32,
    last_us: u64,
}

impl Worker {
    /// One task: calls, one after the other, until none is left.
    async fn work(self: Arc<Self>) {
        loop {
            let call = self.next.fetch_add(1, Ordering::Relaxed);
            if call >= self.calls {
                return;
            }
            let to = Address { url: self.url.clone(), client: self.client, call: self.first + call };
            let began = Instant::now();
            while self.caller.call(&to).await == Answer::GivenUp {
                self.tally.lock().given_up += 1;
            }
            let tally = &mut *self.tally.lock();
            tally.took_us.push(began.elapsed().as_micros() as u64);
            tally.last_us = self.start.elapsed().as_micros() as u64;
        }
    }

    /// Calls a second that it got done.
    fn pace(&self) -> f64 {
        let tally = self.tally.lock();
        tally.took_us.len() as f64 / (tally.last_us.max(1) as f64 / 1e6)
    }
}

impl Plan {
    pub(crate) fn ideal_us(self) -> u64 {
        self.load.ideal_us(self.server, self.calls)
    }

    /// About how long it takes, in ideals: what takes long is begun first.
    pub(crate) fn weight(self) -> u32 {
        if self.client == Client::RetryAfter { self.cut() } else { 2 }
    }

    fn cut(self) -> u32 {
        let published = (self.server, self.load) == (Kind::TokenBucket, Load::Even);
        if published { CUT_LATE } else { CUT }
    }

    /// Runs it, from a whole number of seconds after `beat` on.
    pub(crate) async fn run(self, beat: Instant) -> Result<Outcome> {
        let redis = if self.client.is_on_redis() { Some(RedisServer::start().await?) } else { None };
        let (per_second, burst) = self.load.belief();
        let belief = Belief { kind: self.server, per_second, burst };
        let mut server = Server::start(self.server, self.load).await?;
        let callers = self.client.fleet(transports(&server).await?, belief, redis.as_ref()).await?;
        tokio::time::sleep_until(beat + Duration::from_secs(beat.elapsed().as_secs() + 1)).await;
        let trips_before = trips(redis.as_ref()).await?;
        server.begin();
        let start = Instant::now();
        let (url, mut first) = (Arc::<str>::from(&*server.url), 0);
        let workers = callers.into_iter().zip(0..CLIENTS).map(|(caller, client)| {
            let calls = self.load.calls_of(client, self.calls);
            let (url, tally) = (url.clone(), Mutex::default());
            let worker = Worker { caller, client, url, calls, first, next: AtomicU32::new(0), start, tally };
            first += calls;
            Arc::new(worker)
        });
        let workers = workers.collect::<Vec<_>>();
        let mut tasks = JoinSet::new();
        for worker in &workers {
            (0..TASKS).for_each(|_| _ = tasks.spawn(worker.clone().work()));
        }
        let longest = Duration::from_micros(self.ideal_us()) * self.cut();
        let all = async { while tasks.join_next().await.is_some() {} };
        let stalled_us = AtomicU64::new(0);
        let cut = tokio::select! {
            ended = tokio::time::timeout(longest, all) => ended.is_err(),
            () = watch(&stalled_us) => unreachable!("it has no end"),
        };
        let elapsed_us = start.elapsed().as_micros() as u64;
        tasks.shutdown().await;
        let trips = trips(redis.as_ref()).await?.zip(trips_before).map(|(after, before)| after - before);
        let outcome = self.outcome(&workers, &server.decisions(), trips, cut.then_some(elapsed_us));
        Ok(Outcome { stalled_us: stalled_us.into_inner(), ..outcome })
    }

    fn outcome(
        self,
        workers: &[Arc<Worker>],
        decisions: &[Decided],
        trips: Option<u64>,
        cut_us: Option<u64>,
    ) -> Outcome {
        let busy = || workers.iter().filter(|worker| worker.calls > 0);
        let mut took_us = busy().flat_map(|worker| worker.tally.lock().took_us.clone()).collect::<Vec<_>>();
        let last_us = busy().map(|worker| worker.tally.lock().last_us).max().unwrap_or(0);
        let paces = busy().map(|worker| worker.pace()).collect::<Vec<_>>();
        let (ideal_us, time_us) = (self.ideal_us(), cut_us.unwrap_or(last_us));
        let (done, refused) =
            (took_us.len() as u32, decisions.iter().filter(|it| !it.admitted).count() as u32);
        let admitted = decisions.iter().filter(|it| it.admitted).map(|it| it.at_us);
        let exactly = |at| Bracket { after: at, before: at };
        Outcome {
            plan: self,
            ideal_us,
            time_us,
            time_over_ideal: time_us as f64 / ideal_us as f64,
            done,
            cut: cut_us.is_some(),
            refused,
            refused_per_success: f64::from(refused) / f64::from(done.max(1)),
            early: early(decisions),
            given_up: busy().map(|worker| worker.tally.lock().given_up).sum(),
            p50_us: percentile(&mut took_us, 50),
            p99_us: percentile(&mut took_us, 99),
            jain: jain(&paces),
            trips_per_call: trips.map(|trips| trips as f64 / f64::from(done.max(1))),
            most_in_a_second: busiest(&admitted.clone().map(exactly).collect::<Vec<_>>(), 1_000_000),
            stalled_us: 0,
            admissions: per_bin(admitted, BIN_US),
        }
    }
}

async fn trips(redis: Option<&RedisServer>) -> Result<Option<u64>> {
    match redis {
        Some(server) => server.trips().await.map(Some),
        None => Ok(None),
    }
}

/// Writes down how late a timer is at most.
async fn watch(stalled_us: &AtomicU64) {
    loop {
        let due = Instant::now() + TICK;
        tokio::time::sleep_until(due).await;
        stalled_us.fetch_max(due.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
}

/// Sends of a call before the wait of its last 429 was over, on the server's clock.
fn early(decisions: &[Decided]) -> u32 {
    let mut told_until = std::collections::HashMap::new();
    let mut early = 0;
    for Decided { at_us, call, admitted } in decisions {
        early += u32::from(told_until.get(call).is_some_and(|until| at_us < until));
        if !admitted {
            told_until.insert(*call, at_us + RETRY_AFTER_US);
        }
    }
    early
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_is_early_until_the_wait_is_over() {
        let decided = |at_us, call, admitted| Decided { at_us, call, admitted };
        let decisions = [
            decided(0, 1, false),
            decided(1, 2, true),
            decided(999_999, 1, false),
            decided(1_000_000, 1, false),
            decided(2_000_000, 1, true),
        ];
        assert_eq!(early(&decisions), 2);
    }
}
