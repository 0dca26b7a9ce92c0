//! One run: a limiter, a load and a deployment, over real HTTP, and what came of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::deployment::{Deployment, Servers};
use super::limiter::{Figure, Limiter};
use super::scenario::Scenario;
use crate::figures::{Bracket, busiest, busiest_aligned, most_at_once, percentile};
use crate::store::Home;

const SECOND_US: u64 = 1_000_000;

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Plan {
    pub(crate) limiter: Limiter,
    pub(crate) scenario: Scenario,
    pub(crate) deployment: Deployment,
}

/// What came of a run. Times are in microseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    pub(crate) plan: Plan,
    pub(crate) sent: usize,
    pub(crate) admitted: usize,
    pub(crate) refused: usize,
    /// By the instants of the decisions.
    pub(crate) most_in_a_second: usize,
    /// The same, of seconds that begin a multiple of 100 ms after the first.
    pub(crate) most_in_segments: usize,
    pub(crate) most_at_once: usize,
    /// Latency of those admitted, the backend's own time taken off.
    pub(crate) p50_us: u64,
    pub(crate) p95_us: u64,
    pub(crate) slowest_refusal_us: u64,
    /// How often each value came, `none` for those without.
    pub(crate) retry_after: BTreeMap<String, usize>,
    /// By the policy that each refusal named.
    pub(crate) refused_by: BTreeMap<String, usize>,
    pub(crate) verdicts: Vec<Verdict>,
    /// How late the latest request was sent: of a machine that was busy with something else the figures of a
    /// run say little.
    pub(crate) late_us: u64,
    /// When the backend saw each, sorted.
    pub(crate) admissions_us: Vec<u64>,
    /// How long each admitted request took, the backend's own time taken off, sorted.
    pub(crate) latencies_us: Vec<u64>,
}

/// One figure beside what it has to be.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Verdict {
    pub(crate) figure: Figure,
    pub(crate) is: u64,
    pub(crate) must: String,
    pub(crate) met: bool,
}

/// One answer.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    took_us: u64,
    late_us: u64,
}

impl Plan {
    /// Runs it; requests begin at `start` at the earliest.
    pub(crate) async fn run(self, home: Home<'_>, start: Instant) -> Result<Outcome> {
        let (limit, takes) = (self.limiter.limit(), self.scenario.takes());
        let servers = Servers::start(self.deployment, home, &limit, takes).await?;
        let times = self.scenario.times();
        let mut senders = Vec::new();
        for replica in servers.addresses.iter().cycle().take(times.len()) {
            // A connection of its own, made beforehand, so that only the request is on the way.
            senders.push(connect(*replica).await?);
        }
        let start = start.max(Instant::now());
        let (mut calls, mut slip) = (JoinSet::new(), Duration::ZERO);
        for (sender, time) in senders.into_iter().zip(times) {
            let at = start + time + slip;
            sleep_until(at).await;
            if self.scenario.keeps_distance() {
                slip = start.elapsed() - time;
            }
            calls.spawn(call(sender, at));
        }
        let mut answers = Vec::new();
        while let Some(answer) = calls.join_next().await {
            answers.push(answer??);
        }
        self.outcome(&servers, start, &answers)
    }

    fn outcome(self, servers: &Servers, start: Instant, answers: &[Answer]) -> Result<Outcome> {
        let us = |at: Instant| at.saturating_duration_since(start).as_micros() as u64;
        let seen = servers.seen();
        let brackets = seen.iter().map(|seen| Bracket {
            after: us(if self.limiter.holds() { seen.reached } else { seen.came }),
            before: us(seen.reached),
        });
        let brackets = brackets.collect::<Vec<_>>();
        let under_way = seen.iter().map(|seen| (us(seen.reached), us(seen.done))).collect::<Vec<_>>();
        let mut admissions_us = under_way.iter().map(|(reached, _)| *reached).collect::<Vec<_>>();
        admissions_us.sort_unstable();

        let backend_us = self.scenario.takes().as_micros() as u64;
        let (mut latencies_us, mut slowest_refusal_us) = (Vec::new(), 0);
        let (mut retry_after, mut refused_by) = (BTreeMap::new(), BTreeMap::new());
        for answer in answers {
            match answer.status {
                StatusCode::OK => latencies_us.push(answer.took_us.saturating_sub(backend_us)),
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                    slowest_refusal_us = slowest_refusal_us.max(answer.took_us);
                    let field =
                        |name| answer.headers.get(name).map_or("none", |text| text.to_str().unwrap_or("?"));
                    *retry_after.entry(field("retry-after").to_owned()).or_default() += 1;
                    *refused_by.entry(field("x-ratelimit-policy").to_owned()).or_default() += 1;
                }
                status => bail!("an answer of {status}"),
            }
        }
        if latencies_us.len() != seen.len() {
            bail!("{} were answered, and the backend saw {}", latencies_us.len(), seen.len());
        }
        let mut outcome = Outcome {
            plan: self,
            sent: answers.len(),
            admitted: latencies_us.len(),
            refused: answers.len() - latencies_us.len(),
            most_in_a_second: busiest(&brackets, SECOND_US),
            most_in_segments: busiest_aligned(&brackets, SECOND_US, SECOND_US / 10),
            most_at_once: most_at_once(&under_way),
            p50_us: percentile(&mut latencies_us, 50),
            p95_us: percentile(&mut latencies_us, 95),
            slowest_refusal_us,
            retry_after,
            refused_by,
            verdicts: Vec::new(),
            late_us: answers.iter().map(|answer| answer.late_us).max().unwrap_or(0),
            admissions_us,
            latencies_us,
        };
        let must = self.limiter.must(self.scenario, self.deployment);
        outcome.verdicts = must
            .iter()
            .map(|must| {
                let is = outcome.figure(must.figure);
                Verdict { figure: must.figure, is, must: must.text(), met: must.range.contains(&is) }
            })
            .collect();
        Ok(outcome)
    }
}

impl Outcome {
    pub(crate) fn figure(&self, figure: Figure) -> u64 {
        match figure {
            Figure::MostInASecond => self.most_in_a_second as u64,
            Figure::MostInSegments => self.most_in_segments as u64,
            Figure::Admitted => self.admitted as u64,
            Figure::P95Millis => self.p95_us / 1_000,
            Figure::MostAtOnce => self.most_at_once as u64,
            Figure::Refused => self.refused as u64,
            Figure::SlowestRefusalMillis => self.slowest_refusal_us.div_ceil(1_000),
        }
    }

    pub(crate) fn is_as_it_must(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.met)
    }
}

async fn connect(address: SocketAddr) -> Result<SendRequest<Empty<Bytes>>> {
    let stream = TcpStream::connect(address).await.context("a replica does not accept")?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn call(mut sender: SendRequest<Empty<Bytes>>, at: Instant) -> Result<Answer> {
    let sent = Instant::now();
    let request = Request::get("/").header("host", "localhost").body(Empty::new())?;
    let (head, _) = sender.send_request(request).await?.into_parts();
    let took_us = sent.elapsed().as_micros() as u64;
    let late_us = sent.saturating_duration_since(at).as_micros() as u64;
    Ok(Answer { status: head.status, headers: head.headers, took_us, late_us })
}
