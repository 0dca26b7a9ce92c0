//! Decisions a second of one process with so many tasks that ask again and again, on one key and on a thousand,
//! beside as many tasks that each run the plain counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forbear::store::Redis;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::contenders::{self, KEY, Ours, Who};
use crate::server::Server;
use crate::table::Line;

/// The key of a task.
type Key = fn(usize) -> String;

const TURNS: usize = 9;
const TURN: Duration = Duration::from_millis(250);

pub(crate) fn lines(server: &mut Server) -> Vec<Line> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let url = server.url();
    let store = Redis::new(&url).expect("the address is valid");
    let ours = Who::Ours(Ours::new("token bucket", "many", &[contenders::bucket()], &store));
    let counter = runtime.block_on(Who::counter(&url));
    let one = |_| KEY.to_owned();
    let cases: [(usize, &str, Key); 5] = [
        (1, "1 task, one key", one),
        (16, "16 tasks, one key", one),
        (256, "256 tasks, one key", one),
        (1_000, "1,000 tasks, one key", one),
        (1_000, "1,000 tasks, 1,000 keys", forbear_benches::contender::key),
    ];
    cases.map(|(tasks, what, key)| line(server, &runtime, [&ours, &counter], tasks, what, key)).into()
}

fn line(
    server: &mut Server,
    runtime: &Runtime,
    [ours, counter]: [&Who; 2],
    tasks: usize,
    what: &str,
    key: Key,
) -> Line {
    let (mut of_ours, mut of_counter, mut trips) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        server.reset();
        let (rate, decisions) = run(runtime, ours, tasks, key);
        of_ours.push(rate);
        trips.push(server.scripts().calls as f64 / decisions as f64);
        of_counter.push(run(runtime, counter, tasks, key).0);
    }
    let middle = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let upper_quartile = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() * 3 / 4]
    };
    let (ours, counter) = (upper_quartile(of_ours), upper_quartile(of_counter));
    let what = format!("decisions a second, {what}; {:.3} trips each", middle(trips));
    Line::new(what, thousands(ours)).beside("INCRBY and PEXPIRE", thousands(counter), counter / ours)
}

/// How often all tasks together decide in a second, and how often they did in all.
fn run(runtime: &Runtime, who: &Who, tasks: usize, key: Key) -> (f64, u64) {
    let work = {
        let who = who.clone();
        async move {
            let (is_over, start) = (Arc::new(AtomicBool::new(false)), Instant::now());
            let mut set = JoinSet::new();
            for key in (0..tasks).map(key) {
                let (mut who, is_over) = (who.clone(), is_over.clone());
                set.spawn(async move {
                    let mut decisions = 0_u64;
                    while !is_over.load(Ordering::Relaxed) {
                        who.decide(&key).await;
                        decisions += 1;
                    }
                    decisions
                });
            }
            sleep(TURN).await;
            is_over.store(true, Ordering::Relaxed);
            let decisions = set.join_all().await.into_iter().sum::<u64>();
            (decisions as f64 / start.elapsed().as_secs_f64(), decisions)
        }
    };
    runtime.block_on(runtime.spawn(work)).expect("it does not panic")
}

fn thousands(rate: f64) -> String {
    format!("{:.1} k/s", rate / 1_000.0)
}
