//! A fleet that calls a strict service over real HTTP: worker processes with a wrapped client that share a quota
//! through Redis, and a service that really allows so much and answers what is above with 429.
//!
//! A target that uses it calls [`work`] in a test named `worker`, or first in `main`: without a job it does
//! nothing. It needs the kit's `fleet` beside it.
#![allow(dead_code, unreachable_pub, reason = "each target uses a part of it")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forbear::store::Redis;
use forbear::{Builder, Policy};
use http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncBufReadExt;
use tokio::time::Instant;

use crate::fleet::worker;

pub const TASKS: usize = 16;
pub const LIMIT: &str = "200/s burst 20";
pub const RATE: f64 = 200.0;
const BURST: f64 = 20.0;
const JOB: &str = "FORBEAR_HTTP_JOB";

/// One worker's side: a call for each line that it reads, and a line for each that it has made.
/// Whether there was a job.
pub fn work() -> bool {
    let Ok(job) = std::env::var(JOB) else { return false };
    let (redis, url) = job.split_once(' ').expect("two URLs");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(do_calls(redis, url));
    true
}

async fn do_calls(redis: &str, url: &str) {
    // A machine that is held up by something else is no outage.
    let store = Redis::new(redis).expect("a good URL").budget(Duration::from_secs(2));
    let builder = Builder::new(reqwest::Client::new()).policy(Policy::new("http").limit(LIMIT));
    let client = builder.store(store).build().expect("a good policy");
    let (jobs, todo) = tokio::sync::mpsc::unbounded_channel::<()>();
    let todo = Arc::new(tokio::sync::Mutex::new(todo));
    for _ in 0..TASKS {
        let (todo, client, url) = (todo.clone(), client.clone(), url.to_owned());
        tokio::spawn(async move {
            while todo.lock().await.recv().await.is_some() {
                let answer = client.get(&url).send().await;
                let good = answer.is_ok_and(|answer| answer.status() == StatusCode::OK);
                println!("{}", if good { '+' } else { '-' });
            }
        });
    }
    println!("ready");
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {
        jobs.send(()).expect("somebody takes jobs");
    }
}

/// A worker process, seen from outside.
pub struct HttpWorker {
    child: Child,
    jobs: ChildStdin,
    given: u64,
    good: Arc<AtomicU64>,
    bad: Arc<AtomicU64>,
}

impl HttpWorker {
    /// Starts it, and waits until it can be given jobs.
    pub fn start(redis: &str, url: &str) -> Self {
        let mut command = worker::command(JOB, &format!("{redis} {url}"), &[]);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("a worker starts");
        let jobs = child.stdin.take().expect("it is piped");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.ends_with("ready")));
        ready.expect("it is ready").expect("a line");
        let (good, bad) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (well, ill) = (good.clone(), bad.clone());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let count = if line == "+" { &well } else { &ill };
                count.fetch_add(1, SeqCst);
            }
        });
        Self { child, jobs, given: 0, good, bad }
    }

    pub fn give(&mut self, jobs: u64) {
        self.given += jobs;
        self.jobs.write_all(&vec![b'\n'; jobs as usize]).expect("it listens");
    }

    pub fn good(&self) -> u64 {
        self.good.load(SeqCst)
    }

    pub fn bad(&self) -> u64 {
        self.bad.load(SeqCst)
    }

    /// Kills it. The jobs of which it has not said that they are done.
    pub fn kill(&mut self) -> u64 {
        _ = self.child.kill();
        _ = self.child.wait();
        // What it had said is still read.
        std::thread::sleep(Duration::from_millis(20));
        self.given - self.good() - self.bad()
    }
}

impl Drop for HttpWorker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// How a run of a fleet went.
#[derive(Debug)]
pub struct Run {
    pub time: Duration,
    pub refused: usize,
    pub failed: u64,
    pub calls: u64,
    /// Calls of each worker when three quarters were done.
    pub each: Vec<u64>,
}

impl Run {
    /// Of the time that the limit alone would take.
    pub fn of_ideal(&self) -> f64 {
        self.time.as_secs_f64() / ((self.calls as f64 - BURST) / RATE)
    }

    pub fn refused_per_success(&self) -> f64 {
        self.refused as f64 / self.calls as f64
    }

    /// 1 if all got the same.
    pub fn jain(&self) -> f64 {
        let each = self.each.iter().map(|calls| *calls as f64);
        each.clone().sum::<f64>().powi(2)
            / (self.each.len() as f64 * each.map(|calls| calls * calls).sum::<f64>())
    }
}

/// Makes `calls` calls by the first `of` workers; half way the last one is killed, if that is asked for, and its
/// jobs go to the others.
pub fn run(workers: &mut Vec<HttpWorker>, service: &Service, calls: u64, of: usize, kill: bool) -> Run {
    let refused_before = service.refused();
    let bad_before = workers.iter().map(HttpWorker::bad).sum::<u64>();
    let before = workers.iter().map(HttpWorker::good).collect::<Vec<_>>();
    let done =
        |workers: &[HttpWorker]| workers.iter().map(|worker| worker.good() + worker.bad()).sum::<u64>();
    let (done_before, mut gone, mut killed) = (done(workers), 0, false);
    let (start, mut each) = (Instant::now(), Vec::new());
    for (worker, i) in workers[..of].iter_mut().zip(0..) {
        worker.give(calls / of as u64 + u64::from(i < calls % of as u64));
    }
    loop {
        let done = gone + done(workers) - done_before;
        if kill && !killed && done >= calls / 2 {
            killed = true;
            let mut last = workers.pop().expect("there are workers");
            let undone = last.kill();
            gone += last.good() + last.bad();
            let others = workers.len() as u64;
            for (worker, i) in workers.iter_mut().zip(0..) {
                worker.give(undone / others + u64::from(i < undone % others));
            }
            continue;
        }
        if each.is_empty() && done >= calls * 3 / 4 {
            each = workers[..of.min(workers.len())]
                .iter()
                .zip(&before)
                .map(|(now, then)| now.good() - then)
                .collect();
        }
        if done >= calls {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{done} of {calls} after a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
    let failed = workers.iter().map(HttpWorker::bad).sum::<u64>().saturating_sub(bad_before);
    Run { time: start.elapsed(), refused: service.refused() - refused_before, failed, calls, each }
}

/// A service on loopback that allows [`LIMIT`], counted by itself when a request arrives.
pub struct Service {
    pub url: String,
    inside: Arc<Inside>,
    _runtime: tokio::runtime::Runtime,
}

struct Inside {
    /// In requests, and when that was so.
    debt: Mutex<(f64, Instant)>,
    refused: AtomicUsize,
    /// When each request came.
    came: Mutex<Vec<Instant>>,
    /// What the next ones are answered whatever the limit, in seconds of Retry-After; and when that was.
    told: Mutex<VecDeque<u64>>,
    told_at: Mutex<Vec<Instant>>,
}

impl Service {
    pub fn start() -> Self {
        let inside = Arc::new(Inside {
            debt: Mutex::new((0.0, Instant::now())),
            refused: AtomicUsize::new(0),
            came: Mutex::default(),
            told: Mutex::default(),
            told_at: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("it is bound"));
        let all = inside.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let inside = all.clone();
                let service = hyper::service::service_fn(move |_: Request<hyper::body::Incoming>| {
                    let answer = inside.answer();
                    async move { Ok::<_, Infallible>(answer) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { url, inside, _runtime: runtime }
    }

    /// 429s that the limit itself asked for.
    pub fn refused(&self) -> usize {
        self.inside.refused.load(SeqCst)
    }

    /// The next request is refused for so many seconds.
    pub fn refuse_next(&self, seconds: u64) {
        self.inside.told.lock().expect("no test panics in here").push_back(seconds);
    }

    pub fn told_at(&self) -> Vec<Instant> {
        self.inside.told_at.lock().expect("no test panics in here").clone()
    }

    pub fn came(&self) -> Vec<Instant> {
        self.inside.came.lock().expect("no test panics in here").clone()
    }
}

impl Inside {
    fn answer(&self) -> Response<String> {
        let now = Instant::now();
        self.came.lock().expect("no test panics in here").push(now);
        if let Some(seconds) = self.told.lock().expect("no test panics in here").pop_front() {
            self.told_at.lock().expect("no test panics in here").push(now);
            return refusal(seconds);
        }
        let mut debt = self.debt.lock().expect("no test panics in here");
        let owed = (debt.0 - now.duration_since(debt.1).as_secs_f64() * RATE).max(0.0);
        if owed + 1.0 > BURST {
            *debt = (owed, now);
            self.refused.fetch_add(1, SeqCst);
            return refusal(1);
        }
        *debt = (owed + 1.0, now);
        Response::new("hello".to_owned())
    }
}

fn refusal(seconds: u64) -> Response<String> {
    let response = Response::builder().status(StatusCode::TOO_MANY_REQUESTS).header("retry-after", seconds);
    response.body("later".to_owned()).expect("a response")
}
