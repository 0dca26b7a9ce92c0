//! The client mirrors the server's limit: told what the server allows, it is as good as never refused, and
//! leaves next to nothing unused.
//!
//! A thousand calls are offered at twice the limit's pace, to a client made by `Builder` as `wrap` makes it
//! and over a seeded network (`support::network`) to a server behind `LimitLayer`. Asserted of every limiter,
//! in each run: at most one call in a thousand is answered 429, and 95 % of N are used in each window after
//! the first (of segments, s/(s+1) of that).
//!
//! The delays are those that a jitter margin is there for, ordinary spread and new connections: within a
//! data centre for windows of a second and more and buckets that fill in 100 ms and more, across the
//! internet, where a new connection takes up to 80 ms, for those whose margin, a fiftieth, is 100 ms and
//! more. Lost packets, 200 ms late, are apart: no margin of 20 ms covers them, and the last tests say what
//! they cost.
#![cfg(feature = "client")]

mod support;

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use forbear::{Builder, Limit, Limiter, Policy, Rate, Refused, Retry, Signals, store::Local};
use support::network::{Network, Way};
use support::{URL, ms, secs};
use tokio::time::Instant;

const CALLS: u64 = 1_000;
const SEEDS: [u64; 3] = [1, 2, 3];

/// The server's limit and the client's, and what is asked of them.
#[derive(Clone)]
struct Mirror {
    server: Limit,
    client: Limit,
    rate: Rate,
    /// The part of N that can be used.
    most: f64,
    /// Whether the server's window is open already, by others, when the client comes.
    opened: bool,
}

impl Mirror {
    /// Both have the same.
    fn of(limit: Limit, rate: Rate) -> Self {
        Self { server: limit.clone(), client: limit, rate, most: 1.0, opened: false }
    }

    /// The client knows only the number, and nothing of the server's phase.
    fn by_plain_rate(server: Limit, rate: Rate) -> Self {
        Self { server, client: Limit::rate(rate), rate, most: 1.0, opened: true }
    }

    async fn run(&self, way: &Way, seed: u64) -> Run {
        let network = Network::new(way.clone(), seed, Policy::new("server").limit(&self.server));
        if self.opened {
            network.intrude().await;
            let phase = 0.05 + 0.9 * fastrand::Rng::with_seed(seed + 1_000).f64();
            tokio::time::sleep(self.rate.period().mul_f64(phase)).await;
        }
        let policy = Policy::new("api").limit(&self.client).max_wait(secs(600));
        let client = Builder::new(reqwest::Client::new()).policy(policy).retry(Retry::default().seed(seed));
        let client = network.behind(client.build().expect("a client"));
        let start = Instant::now();
        let pace = self.rate.period().div_f64(2.0 * self.rate.units() as f64);
        let calls = (0..CALLS).map(|i| {
            let client = client.clone();
            tokio::spawn(async move {
                tokio::time::sleep_until(start + pace.mul_f64(i as f64)).await;
                match client.get(URL).send().await {
                    Ok(response) => assert_eq!(response.status(), 200),
                    // A leaky bucket's queue is full.
                    Err(error) => assert!(Refused::of(&error).is_some(), "{error:?}"),
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.expect("no call fails");
        }
        Run { refused: network.refused(), used: self.used(&network) }
    }

    /// The part of N that was admitted in whole windows after the first, while there was demand.
    fn used(&self, network: &Network) -> f64 {
        let (window, n) = (self.rate.period(), self.rate.units());
        let admitted =
            network.decisions().into_iter().filter(|decided| decided.admitted).map(|decided| decided.at);
        let admitted = admitted.collect::<Vec<_>>();
        let first = *admitted.iter().min().expect("some were admitted");
        let last = *admitted.iter().max().expect("some were admitted");
        let windows = ((last - first).as_micros() / window.as_micros()) as u32;
        assert!(windows >= 2, "a run of {windows} windows says nothing");
        let counted = first + window..first + window * windows;
        let used = admitted.iter().filter(|at| counted.contains(at)).count();
        used as f64 / (n * u64::from(windows - 1)) as f64 / self.most
    }
}

/// `FixedWindow(100/s)`, and the client's limit where it has another.
impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", kind(&self.server))?;
        if self.client != self.server {
            write!(f, " by {}", kind(&self.client))?;
        }
        Ok(())
    }
}

/// Which algorithm, with its numbers.
fn kind(limit: &Limit) -> String {
    let text = format!("{limit:?}");
    let kind = text.split_once("kind: ").expect("a limit has a kind").1;
    kind.split_once(", unit").expect("and a unit").0.replace("Rate ", "")
}

/// What one run came to.
#[derive(Debug)]
struct Run {
    refused: usize,
    used: f64,
}

/// Runs all over all ways, and says of each what is not as it should be.
async fn check(mirrors: impl IntoIterator<Item = (Mirror, Vec<Way>)>, refused: usize, used: f64) {
    let mut faults = String::new();
    for (mirror, ways) in mirrors {
        for way in ways {
            for seed in SEEDS {
                let run = mirror.run(&way, seed).await;
                let name = format!("{mirror}, {way}, seed {seed}");
                println!("{:3} 429s, {:.3} used: {name}", run.refused, run.used);
                if run.refused > refused || run.used < used {
                    _ = writeln!(faults, "{name}: {run:?}");
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

fn rate(text: &str) -> Rate {
    text.parse().expect("a rate")
}

/// Rates of windows, with the ways whose jitter their default margins cover.
fn windows() -> [(Rate, Vec<Way>); 5] {
    [
        (rate("100/s"), vec![Way::lan()]),
        (rate("250/s"), vec![Way::lan()]),
        (rate("200/2s"), vec![Way::lan()]),
        (rate("100/5s"), vec![Way::inet()]),
        (rate("300/10s"), vec![Way::inet()]),
    ]
}

fn all_windows(limit: impl Fn(Rate) -> Limit) -> impl Iterator<Item = (Mirror, Vec<Way>)> {
    windows().into_iter().map(move |(rate, ways)| (Mirror::of(limit(rate), rate), ways))
}

fn by_plain_rates(limit: impl Fn(Rate) -> Limit) -> impl Iterator<Item = (Mirror, Vec<Way>)> {
    windows().into_iter().map(move |(rate, ways)| (Mirror::by_plain_rate(limit(rate), rate), ways))
}

fn buckets() -> [(Rate, u64, Vec<Way>); 7] {
    [
        (rate("100/s"), 10, vec![Way::lan()]),
        (rate("100/s"), 100, vec![Way::lan()]),
        (rate("200/s"), 20, vec![Way::lan()]),
        (rate("400/s"), 100, vec![Way::lan()]),
        (rate("1200/min"), 2, vec![Way::lan()]),
        (rate("20/s"), 100, vec![Way::inet()]),
        (rate("500/min"), 50, vec![Way::inet()]),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_token_bucket_is_mirrored() {
    let mirrors = buckets()
        .into_iter()
        // A run has to last for two periods.
        .map(|(rate, burst, ways)| (Mirror::of(Limit::token_bucket(rate, burst), short(rate)), ways));
    check(mirrors, 1, 0.95).await;
}

/// The same pace, counted by the second.
fn short(rate: Rate) -> Rate {
    match rate.units() as f64 / rate.period().as_secs_f64() {
        pace if pace.fract() == 0.0 => Rate::per_second(pace as u64),
        pace => Rate::new((pace * 12.0).round() as u64, secs(12)),
    }
}

#[tokio::test(start_paused = true)]
async fn a_leaky_bucket_is_mirrored() {
    let mirrors = [("100/s", 10), ("200/s", 50), ("200/2s", 100)].map(|(text, queue)| {
        let rate = rate(text);
        (Mirror::of(Limit::leaky_bucket(rate, queue), rate), vec![Way::lan(), Way::inet()])
    });
    check(mirrors, 1, 0.95).await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_window_is_mirrored() {
    check(all_windows(Limit::fixed_window), 1, 0.95).await;
}

#[tokio::test(start_paused = true)]
async fn a_sliding_log_is_mirrored() {
    check(all_windows(Limit::sliding_log), 1, 0.95).await;
}

#[tokio::test(start_paused = true)]
async fn a_window_of_segments_is_mirrored_with_one_segment_more() {
    for segments in [4, 10] {
        let mirrors = all_windows(move |rate| Limit::sliding_window(rate, segments));
        let most = f64::from(segments) / f64::from(segments + 1);
        check(mirrors.map(|(mirror, ways)| (Mirror { most, ..mirror }, ways)), 1, 0.95).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_weighted_counter_is_mirrored() {
    check(all_windows(Limit::sliding_counter), 1, 0.95).await;
}

#[tokio::test(start_paused = true)]
async fn the_plain_rate_fits_windows_of_any_phase() {
    check(by_plain_rates(Limit::fixed_window), 1, 0.95).await;
    check(by_plain_rates(|rate| Limit::sliding_window(rate, 10)), 1, 0.95).await;
}

#[tokio::test(start_paused = true)]
async fn the_plain_rate_fits_a_log_and_a_counter_of_any_phase() {
    check(by_plain_rates(Limit::sliding_log), 1, 0.95).await;
    check(by_plain_rates(Limit::sliding_counter), 1, 0.95).await;
}

#[tokio::test(start_paused = true)]
async fn the_plain_rate_fits_buckets_that_hold_a_fiftieth_and_the_margin() {
    let bucket = |rate: Rate| {
        let (n, period) = (rate.units(), rate.period());
        let margin = (period / 50).clamp(ms(20), ms(250));
        let yields = (n as f64 * margin.as_secs_f64() / period.as_secs_f64()).ceil() as u64;
        Limit::token_bucket(rate, n.div_ceil(50) + yields)
    };
    check(by_plain_rates(bucket), 1, 0.95).await;
    check(by_plain_rates(|rate| Limit::leaky_bucket(rate, rate.units() / 10)), 1, 0.95).await;
}

#[tokio::test(start_paused = true)]
async fn short_windows_across_the_internet_need_a_margin_that_is_stated() {
    let rate = rate("100/s");
    for limit in [
        Limit::fixed_window(rate),
        Limit::sliding_log(rate),
        Limit::token_bucket(rate, 20),
        Limit::rate(rate),
    ] {
        let server = if limit == Limit::rate(rate) { Limit::sliding_log(rate) } else { limit.clone() };
        let mirror =
            Mirror { server, client: limit.clone().jitter_margin(ms(100)), ..Mirror::of(limit, rate) };
        // A margin of a tenth costs a tenth at most.
        check([(mirror, vec![Way::inet()])], 1, 0.85).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_packets_cost_buckets_and_plain_rates_nothing() {
    let late = || vec![Way::lan().with_stragglers()];
    let rate = rate("100/s");
    let servers = [Limit::fixed_window(rate), Limit::sliding_log(rate), Limit::sliding_counter(rate)];
    check(servers.map(|server| (Mirror::by_plain_rate(server, rate), late())), 1, 0.95).await;
    let bucket = Limit::token_bucket(rate, 20);
    check(
        [(Mirror::of(bucket, rate), late()), (Mirror::of(Limit::fixed_window(rate), rate), late())],
        1,
        0.95,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_packet_costs_a_log_or_segments_one_429_each() {
    // Five in a thousand are late, and each may be held against the burst after it.
    let rate = rate("250/s");
    let late = || vec![Way::lan().with_stragglers()];
    check([(Mirror::of(Limit::sliding_log(rate), rate), late())], 5, 0.95).await;
    let segments = Mirror { most: 10.0 / 11.0, ..Mirror::of(Limit::sliding_window(rate, 10), rate) };
    check([(segments, late())], 5, 0.95).await;
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "a response has been received at some time")]
async fn a_429_after_a_burst_gives_nothing_back() {
    let rate = Rate::per_second(100);
    let limits = [
        Limit::fixed_window(rate),
        Limit::sliding_window(rate, 10),
        Limit::sliding_counter(rate),
        Limit::sliding_log(rate),
        Limit::rate(rate),
    ];
    for limit in limits {
        let limiter = Limiter::new(Policy::new("api").limit(&limit), Local::new()).expect("right");
        let mut sent = 0;
        for ten_ms in 0..99 {
            while limiter.try_acquire("key").await.is_ok() {
                sent += 1;
            }
            if ten_ms == 10 {
                let asks = [(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"))];
                let soft = Signals::read(
                    http::StatusCode::TOO_MANY_REQUESTS,
                    &asks.into_iter().collect(),
                    SystemTime::now(),
                );
                limiter.observe("key", &soft);
            }
            tokio::time::sleep(ms(10)).await;
        }
        assert!(sent <= 100, "{sent} within a second under {limit:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn quickstart_job_has_no_429_under_virtual_time() {
    let (calls, tasks, limit) = (300, 32, "50/s burst 10");
    let ideal = ms((calls - 10) * 1_000 / 50);
    for seed in 1..=10 {
        let network = Network::new(Way::lan(), seed, Policy::new("everyone").limit(limit));
        let client = forbear::wrap(reqwest::Client::new(), Policy::new("demo").limit(limit));
        let client = network.behind(client.expect("a client"));
        let (next, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let tasks = (0..tasks).map(|_| {
            let (client, next) = (client.clone(), next.clone());
            tokio::spawn(async move {
                while next.fetch_add(1, Ordering::Relaxed) < calls {
                    assert_eq!(client.get(URL).send().await.expect("an answer").status(), 200);
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no call fails");
        }
        assert_eq!((network.refused(), network.decisions().len() as u64), (0, calls));
        let time: Duration = start.elapsed();
        assert!(time <= ideal.mul_f64(1.01), "{time:?} of {ideal:?}");
    }
}
