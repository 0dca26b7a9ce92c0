//! The last bench: prints the ratios that the product promises beside what they were just measured to be.
//!
//! Both sides of a ratio are measured in turns, a few milliseconds apart. The lower quartiles
//! of all turns are compared.

use std::alloc::System;
use std::hint::black_box;

use forbear::store::Local;
use forbear::{Ask, Limiter};
use forbear_benches::contender::{self, KEY};
use forbear_benches::floor::Floor;
use forbear_benches::least::{Least, Numbers};
use forbear_benches::stopwatch::{Case, in_turns, now, since_ns};
use forbear_benches::threads::{at_once, wall_ns};
use forbear_benches::waiters::with_waiting;
use forbear_benches::{memory, stub};
use reqwest_middleware::ClientWithMiddleware;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MANY: usize = 1_000_000;

const ROOM: &str = "there is room for every call of a bench";

/// One line of the table.
struct Line {
    what: &'static str,
    ours: String,
    beside: String,
    ratio: f64,
    target: f64,
}

impl Line {
    fn new(what: &'static str, ours: f64, beside: &str, theirs: f64, target: f64) -> Self {
        let (ours_text, beside) = (format!("{ours:.0} ns"), format!("{beside} {theirs:.0} ns"));
        Self { what, ours: ours_text, beside, ratio: ours / theirs, target }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

fn decision(runtime: &Runtime) -> Vec<Line> {
    let store = Local::new();
    let (one, three) = (contender::one_limit(&store), contender::three_limits(&store));
    // Apart: an instant before the last that was charged is not decided at once.
    let given = contender::one_limit(&Local::new());
    let (keyed, peer) = (contender::governor_keyed(), contender::throttle_net_three());
    let (key, at) = (KEY.to_owned(), Instant::now());
    let costs = [("requests", 1), ("tokens", 100), ("seats", 1)];
    let floor = Floor::with(KEY);
    let bucket = Numbers { unit: 1, repaid: 100, cap: 50_000_000 };
    let seats = Numbers { unit: 1, repaid: 0, cap: 1_000 };
    // Apart, as ours are.
    let (least, least_given) = (Least::with(KEY, &[bucket]), Least::with(KEY, &[bucket]));
    let tokens = Numbers { unit: 1, repaid: 4_295, cap: u32::MAX.into() };
    let least_three = Least::with(KEY, &[bucket, tokens, seats]);
    let at_us = least_given.us(at);
    let times = in_turns(vec![
        Case::new("instant", || _ = black_box(now())),
        Case::new("floor", || floor.count(black_box(&key))),
        Case::new("floor with clock", || _ = black_box(floor.count_now(black_box(&key)))),
        Case::new("governor", || _ = black_box(keyed.check_key(black_box(&key)))),
        Case::timed("one", |times| {
            runtime.block_on(async {
                let start = now();
                for _ in 0..times {
                    _ = black_box(one.acquire(black_box(&key)).await);
                }
                since_ns(start)
            })
        }),
        Case::new("given", || _ = black_box(given.try_acquire_at(black_box(&key), black_box(at)))),
        Case::new("least", || drop(black_box(least.ask(black_box(&key), 0, &[1], None)).expect(ROOM))),
        Case::new("least given", || {
            let at = Some(black_box(at_us));
            drop(black_box(least_given.ask(black_box(&key), 0, &[1], at)).expect(ROOM));
        }),
        Case::new("least three", || {
            drop(black_box(least_three.ask(black_box(&key), 0, &[1, 100, 1], None)).expect(ROOM));
        }),
        Case::new("throttle-net", || _ = black_box(peer.try_acquire_costs(black_box(&costs)))),
        Case::timed("three", |times| {
            runtime.block_on(async {
                let start = now();
                for _ in 0..times {
                    let ask = Ask::new(black_box(&key)).cost("tokens", 100);
                    _ = black_box(three.acquire(ask).await);
                }
                since_ns(start)
            })
        }),
    ]);
    println!("reading an Instant: {:.0} ns", times.ns("instant"));
    let (bare, now) = (times.ns("floor"), times.ns("floor with clock"));
    println!("a lock, a hash and a lookup, nothing else: {bare:.0} ns, {now:.0} ns with the clock");
    println!("the least decision with our promises:");
    for (what, least, peer) in [
        ("one limit", "least", "governor"),
        ("the time given", "least given", "governor"),
        ("three limits", "least three", "throttle-net"),
    ] {
        let (least, peer_ns) = (times.ns(least), times.ns(peer));
        println!("  {what}: {least:.0} ns, {:.2} of {peer}'s", least / peer_ns);
    }
    vec![
        Line::new("one limit, keyed", times.ns("one"), "governor", times.ns("governor"), 1.6),
        Line::new("the same, the time given", times.ns("given"), "governor", times.ns("governor"), 0.8),
        Line::new("three limits", times.ns("three"), "throttle-net", times.ns("throttle-net"), 0.35),
    ]
}

/// Two threads on one key, against one.
fn threads() -> Line {
    let limiter = contender::one_limit(&Local::new());
    let on = |threads: usize| {
        let limiter = &limiter;
        move |times: u64| {
            let each = times.div_ceil(threads as u64);
            wall_ns(threads, each, |_| drop(black_box(at_once(limiter.acquire(black_box(KEY))))))
        }
    };
    let times = in_turns(vec![Case::timed("one", on(1)), Case::timed("two", on(2))]);
    Line::new("two threads on one key, wall time", times.ns("two"), "one thread", times.ns("one"), 1.5)
}

fn fill(limiter: &Limiter, keys: usize) {
    for key in (0..keys).map(contender::key) {
        drop(at_once(limiter.acquire(&key)));
    }
}

/// Memory of a million keys, and what one of 64 costs beside them.
fn keys() -> Vec<Line> {
    let few = contender::one_slow_limit(&Local::new());
    let many = contender::one_slow_limit(&Local::new());
    fill(&few, 64);
    let (region, resident) = (Region::new(ALLOCATOR), memory::resident());
    fill(&many, MANY);
    let change = region.change();
    let bytes = (change.bytes_allocated - change.bytes_deallocated) as f64 / MANY as f64;
    let resident = memory::resident().saturating_sub(resident) as f64 / MANY as f64;
    let asked = (0..64).map(contender::key).collect::<Vec<_>>();
    let among = |limiter: &'static str, of: &Limiter| {
        let (of, asked) = (of.clone(), asked.clone());
        let mut next = 0;
        Case::new(limiter, move || {
            next = (next + 1) % asked.len();
            drop(black_box(at_once(of.acquire(black_box(&asked[next])))));
        })
    };
    let times = in_turns(vec![among("few", &few), among("many", &many)]);
    vec![
        Line {
            what: "bytes an idle key of 20 bytes",
            ours: format!("{bytes:.0} B"),
            beside: format!("resident {resident:.0} B"),
            ratio: bytes / 200.0,
            target: 1.0,
        },
        Line::new("64 keys among a million kept", times.ns("many"), "64 alone", times.ns("few"), 1.5),
    ]
}

/// A free key while callers wait for another one.
fn waiters(runtime: &Runtime) -> Line {
    let (few, some) = runtime.block_on(with_waiting(10));
    let (many, crowd) = runtime.block_on(with_waiting(10_000));
    let _inside = runtime.enter();
    let free = |name, limiter: &Limiter| {
        let limiter = limiter.clone();
        Case::new(name, move || drop(black_box(at_once(limiter.acquire(black_box("a free key"))))))
    };
    let times = in_turns(vec![free("few", &few), free("many", &many)]);
    drop((some, crowd));
    Line::new("a free key while 10,000 wait", times.ns("many"), "while 10 do", times.ns("few"), 1.5)
}

/// What the layers add to a call.
fn client(runtime: &Runtime) -> Vec<Line> {
    let store = Local::new();
    let (bare, peers) = (stub::bare(), stub::peers());
    let ours = stub::ours(contender::one_limit(&store));
    let seats = stub::ours(contender::one_limit_and_seats(&store));
    let least = stub::least(contender::one_limit(&store));
    let case = |name, client: &ClientWithMiddleware| {
        let client = client.clone();
        Case::timed(name, move |times| {
            runtime.block_on(async {
                let start = now();
                for _ in 0..times {
                    black_box(stub::call(&client).await);
                }
                since_ns(start)
            })
        })
    };
    let times = in_turns(vec![
        case("bare", &bare),
        case("peers", &peers),
        case("ours", &ours),
        case("seats", &seats),
        case("least", &least),
    ]);
    let added = |name| times.ns(name) - times.ns("bare");
    let beside = "reqwest-retry and -ratelimit";
    println!(
        "the least that layers with our promises add: {:.0} ns, {:.2} of the peers'",
        added("least"),
        added("least") / added("peers")
    );
    vec![
        Line::new("layers of a client, added", added("ours"), beside, added("peers"), 1.5),
        Line::new("the same, a seat on the body", added("seats"), beside, added("peers"), 2.0),
    ]
}

fn main() {
    let runtime = runtime();
    let mut lines = decision(&runtime);
    lines.push(threads());
    lines.extend(keys());
    lines.push(waiters(&runtime));
    lines.extend(client(&runtime));
    println!("| what | forbear | beside | ratio | at most | |");
    println!("|---|---|---|---|---|---|");
    for Line { what, ours, beside, ratio, target } in lines {
        let met = if ratio <= target { "met" } else { "not met" };
        println!("| {what} | {ours} | {beside} | {ratio:.2} | {target:.2} | {met} |");
    }
}
