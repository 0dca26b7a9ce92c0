//! The client mirrors the server's limit: told what the server allows, it is never refused for it and
//! leaves nearly none of it unused.
#![cfg(feature = "client")]

mod support;

use std::time::Duration;

use forbear::{Builder, Limit, Policy, Rate, Retry};
use support::URL;
use support::network::{Network, Way};
use tokio::time::Instant;

/// The server's limit and the client's.
struct Mirror {
    name: String,
    server: Limit,
    client: Limit,
    n: u64,
    window: Duration,
    most: f64,
    phase: bool,
}

#[derive(Default, Clone)]
struct Seen { calls: u64, ours: u64, refused: u64, worst: u64, used: Vec<f64>, failed: u64 }

async fn run(m: &Mirror, way: Way, seed: u64, calls: u64) -> Seen {
    let net = Network::new(way, seed, Policy::new("server").limit(m.server.clone()));
    if m.phase {
        net.intrude().await;
        let part = 0.05 + 0.9 * fastrand::Rng::with_seed(seed + 77).f64();
        tokio::time::sleep(m.window.mul_f64(part)).await;
    }
    let policy = Policy::new("api").limit(m.client.clone()).max_wait(Duration::from_secs(3600)).max_waiting(1_000_000);
    let client = Builder::new(reqwest::Client::new()).policy(policy).retry(Retry::default().seed(seed));
    let client = net.behind(client.build().expect("a client"));
    let start = Instant::now();
    let pace = m.window.div_f64(2.0 * m.n as f64);
    let tasks: Vec<_> = (0..calls).map(|i| {
        let client = client.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(start + pace.mul_f64(i as f64)).await;
            match client.get(URL).send().await {
                Ok(r) => Ok(r.status().as_u16()),
                Err(e) => Err(forbear::Refused::of(&e).is_some()),
            }
        })
    }).collect();
    let mut seen = Seen::default();
    for t in tasks {
        match t.await.unwrap() {
            Ok(200) => {}
            Err(true) => seen.ours += 1,
            _ => seen.failed += 1,
        }
    }
    let d = net.decisions();
    let first = d[0].at;
    let last = d.iter().rfind(|d| d.admitted).unwrap().at;
    let whole = ((last - first).as_secs_f64() / m.window.as_secs_f64()) as u32;
    let (from, to) = (first + m.window, first + m.window * whole);
    let inside = d.iter().filter(|d| d.admitted && d.at >= from && d.at < to).count();
    seen.calls = calls;
    seen.refused = net.refused() as u64;
    seen.used.push(inside as f64 / (m.n * u64::from(whole - 1)) as f64);
    seen
}

fn mirrors() -> Vec<Mirror> {
    let mut all = Vec::new();
    let windows = [(100, 5_000), (300, 10_000), (400, 60_000)];
    for (n, w) in windows {
        let window = Duration::from_millis(w);
        let r = Rate::new(n, window);
        let mut add = |name: &str, server: Limit, most: f64| {
            all.push(Mirror { name: format!("{name} {r}"), client: server.clone(), server: server.clone(), n, window, most, phase: false });
            let plain = Limit::rate(r);
            all.push(Mirror { name: format!("{name} {r} <- plain"), client: plain, server, n, window, most: 1.0, phase: true });
        };
        add("fixed", Limit::fixed_window(r), 1.0);
        add("log", Limit::sliding_log(r), 1.0);
        add("segmented10", Limit::sliding_window(r, 10), 10.0 / 11.0);
        add("segmented4", Limit::sliding_window(r, 4), 0.8);
        add("counter", Limit::sliding_counter(r), 1.0);
        let margin = (w * 1000 / 50).clamp(20_000, 250_000);
        let burst = n.div_ceil(50) + (n * margin).div_ceil(w * 1000);
        all.push(Mirror { name: format!("bucket {r} b{burst} <- plain"), client: Limit::rate(r), server: Limit::token_bucket(r, burst), n, window, most: 1.0, phase: true });
        all.push(Mirror { name: format!("leaky {r} q{} <- plain", n/10), client: Limit::rate(r), server: Limit::leaky_bucket(r, n/10), n, window, most: 1.0, phase: true });
    }
    for (rate, burst) in [("100/s", 10), ("100/s", 20), ("100/s", 100), ("200/s", 20), ("1000/s", 100), ("500/min", 50), ("600/min", 2), ("1200/min", 2), ("120/min", 2)] {
        let r: Rate = rate.parse().unwrap();
        let l = Limit::token_bucket(r, burst);
        all.push(Mirror { name: format!("bucket {r} b{burst}"), client: l.clone(), server: l, n: r.units(), window: r.period(), most: 1.0, phase: false });
    }
    for (rate, q) in [("100/s", 10), ("200/s", 50), ("600/min", 20)] {
        let r: Rate = rate.parse().unwrap();
        let l = Limit::leaky_bucket(r, q);
        all.push(Mirror { name: format!("leaky {r} q{q}"), client: l.clone(), server: l, n: r.units(), window: r.period(), most: 1.0, phase: false });
    }
    all
}

#[tokio::test(start_paused = true)]
async fn measure() {
    let ways = [Way::lan(), Way::inet(), Way::lan().with_stragglers(), Way::inet().with_stragglers()];
    println!("{:40} lan inet lan+late inet+late   429/1000 worst used", "");
    for m in mirrors() {
        let mut line = format!("{:34}", m.name);
        for way in &ways {
            let mut sum = Seen::default();
            for seed in 1..=2 {
                let calls = 1_000.max(3 * m.n);
                let s = run(&m, way.clone(), seed, calls).await;
                sum.calls += s.calls; sum.refused += s.refused; sum.worst = sum.worst.max(s.refused);
                sum.ours += s.ours; sum.failed += s.failed; sum.used.extend(s.used);
            }
            let least = sum.used.iter().copied().fold(9.0, f64::min) / m.most;
            let f = if sum.failed > 0 { format!("FAILED{}", sum.failed) } else { String::new() };
            line += &format!(" | {:6.2} w{:<3} {:.3}{f}", sum.refused as f64 * 1000.0 / (sum.calls - sum.ours) as f64, sum.worst, least);
        }
        eprintln!("{line}");
    }
}
