//! What a decision in Redis costs: the caller's time, Redis's own time, how many a second, and bytes; beside the
//! plain commands and scripts that a decision cannot do without, measured in turns in one run.

mod contenders;
mod memory;
mod own_time;
mod round_trip;
mod server;
mod stalls;
mod table;
mod throughput;

use server::Server;
use tokio::runtime::Builder;

const MISSING: &str = "\
redis-server was not found, so nothing was measured. To have it:
`apt-get install redis-server`, `brew install redis` or `dnf install redis` (or valkey),
so that it is on PATH. The bench starts one of its own on a free port of the loopback, and ends it.";

fn main() {
    let Some((program, version)) = server::program() else {
        eprintln!("{MISSING}");
        return;
    };
    println!("{version}");
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    let mut server = Server::start(program);
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut lines = Vec::new();
    if wanted("round trip") {
        lines.extend(round_trip::lines(&server));
    }
    if wanted("own time") {
        lines.extend(own_time::lines(&mut server, &runtime));
    }
    if wanted("throughput") {
        lines.extend(throughput::lines(&mut server));
    }
    if wanted("memory") {
        lines.extend(memory::lines(&mut server, &runtime));
    }
    if wanted("stalls") {
        lines.extend(stalls::lines(&mut server, &runtime));
    }
    table::print(&lines);
}
