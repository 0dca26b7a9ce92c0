//! Private Redis servers on loopback, and proxies before them that do what networks do.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener as Listener, TcpStream};
use tokio::sync::Notify;

/// A server of our own; ended when dropped.
pub(crate) struct RedisProcess {
    pub(crate) port: u16,
    directory: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}

impl RedisProcess {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// With more arguments of the server's own kind, such as `--maxmemory 2mb`.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        // Somebody else may take a port that was free a moment ago.
        (0..10).find_map(|_| Self::try_on(free_port(), arguments)).expect("a server starts on some port")
    }

    pub(crate) fn on(port: u16, arguments: &[&str]) -> Self {
        Self::try_on(port, arguments).expect("the port is free")
    }

    fn try_on(port: u16, arguments: &[&str]) -> Option<Self> {
        let directory = std::env::temp_dir().join(format!("forbear-redis-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let mut server = Self { port, directory, arguments, child: None };
        server.try_restart().then_some(server)
    }

    /// Starts it, if need be again, and waits until it answers.
    pub(crate) fn restart(&mut self) {
        assert!(self.try_restart(), "the port {} was taken by another", self.port);
    }

    fn try_restart(&mut self) -> bool {
        self.kill();
        let port = self.port.to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(&self.directory).args(&self.arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        self.child = Some(command.spawn().expect("redis-server is installed"));
        for _ in 0..2_000 {
            let child = self.child.as_mut().expect("it was just started");
            let own = format!("process_id:{}", child.id());
            if child.try_wait().expect("a child of ours").is_some() {
                return false;
            }
            // One that wants a password says no more than that.
            if self
                .try_cli(&["INFO", "server"])
                .is_some_and(|info| info.contains(&own) || info.contains("NOAUTH"))
            {
                return true;
            }
            sleep(Duration::from_millis(10));
        }
        panic!("redis-server on port {port} does not answer");
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        assert!(sent.expect("kill is installed").success());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        self.try_cli(arguments).expect("redis-cli answers")
    }

    /// `None` while it does not answer.
    pub(crate) fn try_cli(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string()]).args(arguments);
        let output =
            command.stdin(Stdio::null()).stderr(Stdio::null()).output().expect("redis-cli is installed");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// How often a command ran.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats = self.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
        _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What a proxy does with all connections, old and new.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    Pass,
    /// Accepts, takes everything and never answers.
    Mute,
    /// Answers after two seconds.
    Slow,
    /// Resets every connection.
    Reset,
    /// Answers what no Redis says.
    Garbage,
}

/// A proxy on a port of its own, in the runtime that made it.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    state: Arc<State>,
}

struct State {
    /// Where new connections lead.
    to: AtomicU16,
    mode: AtomicU8,
    changed: Notify,
    accepted: AtomicUsize,
    closings: AtomicUsize,
    cuts: AtomicUsize,
}

impl State {
    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::SeqCst) == mode as u8
    }
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = Listener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(State {
            to: AtomicU16::new(port),
            mode: AtomicU8::new(Mode::Pass as u8),
            changed: Notify::new(),
            accepted: AtomicUsize::new(0),
            closings: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
        });
        let serving = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                serving.accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(carry(client, serving.clone()));
            }
        });
        Self { port: own, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.state.mode.store(mode as u8, Ordering::SeqCst);
        self.state.changed.notify_waiters();
    }

    /// Leads new connections elsewhere, as a name does that moved.
    pub fn lead_to(&self, port: u16) {
        self.state.to.store(port, Ordering::SeqCst);
    }

    /// Closes the connections that there are, once.
    pub(crate) fn close_all(&self) {
        self.state.closings.fetch_add(1, Ordering::SeqCst);
        self.state.changed.notify_waiters();
    }

    /// Closes a connection instead of passing on the next answer.
    pub(crate) fn cut_answer(&self) {
        self.state.cuts.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }
}

async fn carry(client: TcpStream, state: Arc<State>) {
    let closings = state.closings.load(Ordering::SeqCst);
    let port = state.to.load(Ordering::SeqCst);
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            if to_server.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = vec![0; 1 << 16];
    loop {
        let changed = state.changed.notified();
        if state.is(Mode::Reset) {
            reset(&to_client);
            break;
        }
        let count = tokio::select! {
            count = from_server.read(&mut buffer) => count,
            () = changed => {
                if state.is(Mode::Reset) {
                    reset(&to_client);
                    break;
                }
                if state.closings.load(Ordering::SeqCst) != closings {
                    break;
                }
                continue;
            }
        };
        let Ok(count @ 1..) = count else { break };
        if state.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |cuts| cuts.checked_sub(1)).is_ok() {
            break;
        }
        if state.is(Mode::Mute) {
            continue;
        }
        if state.is(Mode::Slow) {
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        if state.is(Mode::Garbage) {
            buffer[..count].fill(b'?');
        }
        if to_client.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    up.abort();
}

/// So that closing sends a reset.
fn reset(half: &tokio::net::tcp::OwnedWriteHalf) {
    let stream: &TcpStream = half.as_ref();
    let _ = stream.set_zero_linger();
}
