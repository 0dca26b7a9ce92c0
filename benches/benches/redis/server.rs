//! A Redis server of the bench's own, and what it says of itself.
//!
//! On loopback, with nothing on disk, ended with its owner. Nobody's running server is ever asked, emptied or
//! counted on.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use redis::{Connection, FromRedisValue};

/// The programs that will do, in the order in which they are tried.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// A running server; dropping it ends it.
pub(crate) struct Server {
    process: Child,
    port: u16,
    directory: PathBuf,
    admin: Connection,
}

/// What a command has cost since the last reset.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) calls: u64,
    /// The server's own time, all calls together.
    pub(crate) us: u64,
}

/// What was seen while the server was watched.
pub(crate) struct Seen {
    /// The longest script.
    pub(crate) longest_us: u64,
    /// What the server says held it up for a millisecond or more.
    pub(crate) events: Vec<String>,
}

/// The server program that is installed, and what it says of its version.
pub(crate) fn program() -> Option<(&'static str, String)> {
    PROGRAMS.into_iter().find_map(|program| {
        let output = Command::new(program).arg("--version").stderr(Stdio::null()).output().ok()?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some((program, version))
    })
}

impl Server {
    pub(crate) fn start(program: &str) -> Self {
        // Somebody else may take a port that was free a moment ago.
        (0..10).find_map(|_| Self::try_start(program)).expect("the server starts on some port")
    }

    fn try_start(program: &str) -> Option<Self> {
        let socket = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = socket.expect("a free port").port();
        let directory = std::env::temp_dir().join(format!("forbear-bench-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut command = Command::new(program);
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--dir").arg(&directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().expect("it was found just now");
        let client = redis::Client::open(("127.0.0.1", port)).expect("the address is valid");
        let own = format!("process_id:{}", process.id());
        for _ in 0..500 {
            if process.try_wait().expect("a child of ours").is_some() {
                break;
            }
            if let Ok(mut admin) = client.get_connection()
                && redis::cmd("INFO")
                    .arg("server")
                    .query::<String>(&mut admin)
                    .is_ok_and(|info| info.contains(&own))
            {
                return Some(Self { process, port, directory, admin });
            }
            sleep(Duration::from_millis(10));
        }
        _ = process.kill();
        _ = process.wait();
        _ = std::fs::remove_dir_all(&directory);
        None
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// One command, its words apart by spaces.
    pub(crate) fn ask<T: FromRedisValue>(&mut self, command: &str) -> T {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command has a name"));
        words.for_each(|word| _ = cmd.arg(word));
        cmd.query(&mut self.admin).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub(crate) fn reset(&mut self) {
        self.ask::<()>("CONFIG RESETSTAT");
    }

    /// What all scripts cost since the last reset: decisions, reports and heartbeats alike.
    pub(crate) fn scripts(&mut self) -> Cost {
        let info: String = self.ask("INFO commandstats");
        let Some(line) = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")) else {
            return Cost::default();
        };
        let field = |name: &str| {
            let value = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).expect("a count")
        };
        Cost { calls: field("calls"), us: field("usec") }
    }

    /// The names of all keys that hold this.
    pub(crate) fn keys_with(&mut self, part: &str) -> Vec<String> {
        self.ask(&format!("KEYS *{part}*"))
    }

    /// Bytes of a key with all that it holds.
    pub(crate) fn bytes_of(&mut self, key: &str) -> u64 {
        self.ask::<Option<u64>>(&format!("MEMORY USAGE {key} SAMPLES 0")).unwrap_or(0)
    }

    /// From now on every command is written down.
    pub(crate) fn watch(&mut self) {
        self.ask::<()>("CONFIG SET slowlog-max-len 100000");
        self.ask::<()>("CONFIG SET slowlog-log-slower-than 0");
        self.ask::<()>("CONFIG SET latency-monitor-threshold 1");
        self.ask::<()>("LATENCY RESET");
        self.ask::<()>("SLOWLOG RESET");
    }

    /// What was written down.
    pub(crate) fn longest(&mut self) -> Seen {
        self.ask::<()>("CONFIG SET slowlog-log-slower-than -1");
        type Entry = (u64, u64, u64, Vec<redis::Value>, String, String);
        let entries: Vec<Entry> = self.ask("SLOWLOG GET 100000");
        let is_script = |words: &[redis::Value]| matches!(words.first(), Some(redis::Value::BulkString(name)) if name.starts_with(b"EVAL"));
        let longest = entries.iter().filter(|entry| is_script(&entry.3)).map(|entry| entry.2).max();
        let events: Vec<(String, u64, u64, u64)> = self.ask("LATENCY LATEST");
        let events = events.iter().map(|(event, _, _, most_ms)| format!("{event} {most_ms} ms")).collect();
        Seen { longest_us: longest.unwrap_or(0), events }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        _ = std::fs::remove_dir_all(&self.directory);
    }
}
