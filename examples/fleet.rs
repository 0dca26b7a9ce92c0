//! A fleet that shares one budget: eight worker processes, a Redis and a server that really limits its callers,
//! with everything that goes wrong on a usual day.
//!
//! All jobs on two of the workers, then on all alike; then a worker is killed half way, then Redis itself, and
//! started again. The server allows 200 requests a second with a burst of 20 and answers what is above with 429
//! and `Retry-After: 1`; no worker knows how many others there are.
//!
//! ```text
//! cargo run --release --example fleet --features redis
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forbear::store::{Local, Redis};
use forbear::{Builder, Policy};
use forbear_server::{Key, LimitLayer};
use http::{Request, Response, StatusCode};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::ChildStdin;
use tokio::time::{Instant, interval, sleep};
use tower::{Layer, ServiceExt, service_fn};

const WORKERS: usize = 8;
const TASKS: usize = 16;
const CALLS: u64 = 800;
const LIMIT: &str = "200/s burst 20";
const RATE: f64 = 200.0;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next(), arguments.next()) {
        (Some("worker"), Some(redis), Some(url)) => work(&redis, &url).await,
        _ => direct().await,
    }
}

/// One worker: a call for each line that it reads, and a line for each call that it has made.
async fn work(redis: &str, url: &str) -> Result<(), Box<dyn Error>> {
    // This is all: the same two lines as in one process, and a store that the fleet shares.
    let policy = Policy::new("demo").limit(LIMIT);
    let client = Builder::new(reqwest::Client::new()).policy(policy).store(Redis::new(redis)?).build()?;

    let (jobs, todo) = tokio::sync::mpsc::unbounded_channel::<()>();
    let todo = Arc::new(tokio::sync::Mutex::new(todo));
    let (done, mut results) = tokio::sync::mpsc::unbounded_channel::<bool>();
    for _ in 0..TASKS {
        let (todo, done, client, url) = (todo.clone(), done.clone(), client.clone(), url.to_owned());
        tokio::spawn(async move {
            while todo.lock().await.recv().await.is_some() {
                let answer = client.get(&url).send().await;
                _ = done.send(answer.is_ok_and(|answer| answer.status() == StatusCode::OK));
            }
        });
    }
    tokio::spawn(async move {
        let mut out = tokio::io::stdout();
        while let Some(good) = results.recv().await {
            _ = out.write_all(if good { b"+\n" } else { b"-\n" }).await;
            _ = out.flush().await;
        }
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        jobs.send(())?;
    }
    Ok(())
}

/// What goes wrong while a phase runs.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    KillWorker,
    RestartRedis,
}

async fn direct() -> Result<(), Box<dyn Error>> {
    let Some(mut redis) = RedisServer::start() else {
        eprintln!(
            "this example needs redis-server on PATH, which was not found. For example:\n  \
             apt-get install redis-server        # Debian, Ubuntu\n  \
             dnf install redis                   # Fedora\n  \
             brew install redis                  # macOS"
        );
        std::process::exit(1);
    };
    let server = Server::start().await?;
    println!("{WORKERS} workers of {TASKS} tasks; the server allows {LIMIT} to all of them together\n");
    let mut workers =
        (0..WORKERS).map(|_| Worker::start(&redis.url(), &server.url)).collect::<Result<Vec<_>, _>>()?;
    let phases = [
        ("all jobs on 2 of 8", 2, Trouble::None),
        ("on all alike", WORKERS, Trouble::None),
        ("a worker killed half way", WORKERS, Trouble::KillWorker),
        ("Redis killed for 2 s", WORKERS, Trouble::RestartRedis),
    ];
    let mut rows = Vec::new();
    for (i, (name, of, trouble)) in phases.into_iter().enumerate() {
        let row = phase(name, i == 0, of, trouble, &mut workers, &mut redis, &server).await?;
        rows.push(row);
    }
    println!("\n{:26} {:>8} {:>9} {:>6} {:>5} {:>7}", "", "time", "of ideal", "calls", "429s", "failed");
    for Row { name, time, ideal, calls, refused, failed } in &rows {
        let of_ideal = time / ideal;
        println!("{name:26} {time:>6.2} s {of_ideal:>9.3} {calls:>6} {refused:>5} {failed:>7}");
    }
    match rows.iter().map(|row| row.failed).sum::<u64>() {
        0 => Ok(()),
        failed => Err(format!("{failed} calls failed").into()),
    }
}

struct Row {
    name: &'static str,
    time: f64,
    ideal: f64,
    calls: u64,
    refused: u64,
    failed: u64,
}

async fn phase(
    name: &'static str,
    first: bool,
    of: usize,
    trouble: Trouble,
    workers: &mut Vec<Worker>,
    redis: &mut RedisServer,
    server: &Server,
) -> Result<Row, Box<dyn Error>> {
    let style = ProgressStyle::with_template("{prefix:26} {bar:30} {pos:>4}/{len} {msg}")?;
    let progress = ProgressBar::new(CALLS).with_style(style).with_prefix(name);
    let refused_before = server.refused.load(Ordering::Relaxed);
    let done_before = workers.iter().map(Worker::done).sum::<u64>();
    let failed_before = workers.iter().map(Worker::failed).sum::<u64>();
    let start = Instant::now();
    let of = of.min(workers.len());
    for job in 0..CALLS as usize {
        workers[job % of].give(1).await?;
    }
    // Those of a worker that was killed stay counted.
    let (mut gone_done, mut gone_failed) = (0, 0);
    let (mut troubled, mut back_at) = (false, None::<Instant>);
    let mut look = interval(Duration::from_millis(20));
    let mut in_last_second = std::collections::VecDeque::new();
    loop {
        look.tick().await;
        let done = gone_done + workers.iter().map(Worker::done).sum::<u64>() - done_before;
        progress.set_position(done);
        in_last_second.push_back((Instant::now(), done));
        while in_last_second.front().is_some_and(|(at, _)| at.elapsed() > Duration::from_secs(1)) {
            in_last_second.pop_front();
        }
        let pace = done - in_last_second.front().map_or(0, |(_, then)| *then);
        let refused = server.refused.load(Ordering::Relaxed) - refused_before;
        let up = if redis.is_up() { "up" } else { "away" };
        progress.set_message(format!("{pace}/s, {refused} 429s, {} workers, Redis {up}", workers.len()));
        if done >= CALLS {
            break;
        }
        if !troubled && done >= CALLS / 2 {
            troubled = true;
            match trouble {
                Trouble::None => {}
                Trouble::KillWorker => {
                    let killed = workers.pop().expect("there are workers");
                    let left = killed.kill().await;
                    (gone_done, gone_failed) = (gone_done + left.done, gone_failed + left.failed);
                    // Its jobs are not lost: whoever hands them out does so again.
                    for job in 0..left.undone as usize {
                        let worker = job % workers.len();
                        workers[worker].give(1).await?;
                    }
                }
                Trouble::RestartRedis => {
                    redis.kill();
                    back_at = Some(Instant::now() + Duration::from_secs(2));
                }
            }
        }
        if back_at.is_some_and(|at| Instant::now() >= at) {
            back_at = None;
            redis.restart();
        }
    }
    let time = start.elapsed().as_secs_f64();
    progress.finish();
    if back_at.is_some() {
        redis.restart();
        sleep(Duration::from_secs(2)).await;
    }
    let failed = gone_failed + workers.iter().map(Worker::failed).sum::<u64>() - failed_before;
    let refused = server.refused.load(Ordering::Relaxed) - refused_before;
    // Only the first phase finds a full bucket.
    let burst = if first { 20.0 } else { 0.0 };
    Ok(Row { name, time, ideal: (CALLS as f64 - burst) / RATE, calls: CALLS, refused, failed })
}

/// A worker process, seen from outside.
struct Worker {
    child: tokio::process::Child,
    jobs: ChildStdin,
    given: u64,
    done: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

struct Left {
    done: u64,
    failed: u64,
    undone: u64,
}

impl Worker {
    fn start(redis: &str, url: &str) -> Result<Self, Box<dyn Error>> {
        let mut child = tokio::process::Command::new(std::env::current_exe()?)
            .args(["worker", redis, url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let jobs = child.stdin.take().expect("it is piped");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (done, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (all, bad) = (done.clone(), failed.clone());
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                bad.fetch_add(u64::from(line == "-"), Ordering::Relaxed);
                all.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(Self { child, jobs, given: 0, done, failed })
    }

    async fn give(&mut self, jobs: u64) -> std::io::Result<()> {
        self.given += jobs;
        self.jobs.write_all(&vec![b'\n'; jobs as usize]).await
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    async fn kill(mut self) -> Left {
        _ = self.child.kill().await;
        // What it had said is still read.
        sleep(Duration::from_millis(20)).await;
        Left { done: self.done(), failed: self.failed(), undone: self.given - self.done() }
    }
}

/// A Redis of this run alone, on a free port of loopback, that keeps nothing.
struct RedisServer {
    port: u16,
    child: Option<Child>,
}

impl RedisServer {
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).ok()?.port();
        let mut server = Self { port, child: None };
        server.restart();
        server.child.is_some().then_some(server)
    }

    fn restart(&mut self) {
        let port = self.port.to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        self.child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok();
        let up = || std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
        for _ in 0..200 {
            if self.child.is_none() || up() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_up(&self) -> bool {
        self.child.is_some()
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A real HTTP server on loopback, limited by `forbear-server`, that counts its answers.
struct Server {
    url: String,
    refused: Arc<AtomicU64>,
}

impl Server {
    async fn start() -> Result<Self, Box<dyn Error>> {
        let policy = Policy::new("everyone").limit(LIMIT);
        let limits = LimitLayer::new(policy, Key::everyone(), Local::new()).build()?;
        let hello = service_fn(async |_: Request<hyper::body::Incoming>| {
            Ok::<_, Infallible>(Response::new(http_body_util::Full::<bytes::Bytes>::from("hello")))
        });
        let refused = Arc::new(AtomicU64::new(0));
        let no = refused.clone();
        let counted = limits.layer(hello).map_response(move |response| {
            no.fetch_add(u64::from(response.status() == StatusCode::TOO_MANY_REQUESTS), Ordering::Relaxed);
            response
        });
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url = format!("http://{}/", listener.local_addr()?);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(counted.clone());
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { url, refused })
    }
}
