//! One decision at a time, nobody waiting: how long the caller waits for it, beside the round trips of PING and of
//! a script of one line on a connection of the same kind.

use std::hint::black_box;

use forbear::store::Redis;
use forbear_benches::stopwatch::{Case, Times, in_long_turns, now, since_ns};
use redis::Cmd;
use redis::aio::MultiplexedConnection;
use tokio::runtime::{Builder, Runtime};

use crate::contenders::{self, KEY, ONE_LINE, Ours};
use crate::server::Server;
use crate::table::{Figure, Line};

/// Instead of 1.4 times a script of one line a decision may take so much more.
const MORE_NS: f64 = 60_000.0;

pub(crate) fn lines(server: &Server) -> Vec<Line> {
    let one = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let two = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut lines = Vec::new();
    for (what, runtime) in [("one at a time", &one), ("one at a time, on two threads", &two)] {
        let times = measure(server, runtime);
        let [ours, ping, script] = ["ours", "ping", "script"].map(|name| times.ns(name));
        let us = |ns: f64| Figure((ns / 1_000.0).round(), "µs");
        let met = ours <= 1.4 * script || ours <= script + MORE_NS;
        lines.push(
            Line::new(format!("a decision, {what}"), us(ours))
                .beside("EVALSHA of one line", us(script), ours / script)
                .bound("1.40, or 60 µs more", met),
        );
        lines.push(Line::new("the same", us(ours)).beside("PING", us(ping), ours / ping));
    }
    lines
}

fn measure(server: &Server, runtime: &Runtime) -> Times {
    let (ours, connection, script) = runtime.block_on(async {
        let store = Redis::new(server.url()).expect("the address is valid");
        let ours = Ours::new("token bucket", "single", &[contenders::bucket()], &store);
        let mut connection = contenders::connection(&server.url()).await;
        let script = contenders::load(&mut connection, ONE_LINE).await;
        (ours, connection, script)
    });
    // In a task of the runtime, as a service's calls are.
    let send = |connection: &MultiplexedConnection, cmd: Cmd| {
        let connection = connection.clone();
        move |times: u64| {
            let (mut connection, cmd) = (connection.clone(), cmd.clone());
            let task = runtime.spawn(async move {
                let start = now();
                for _ in 0..times {
                    black_box(contenders::send(&mut connection, &cmd).await);
                }
                since_ns(start)
            });
            runtime.block_on(task).expect("it does not panic")
        }
    };
    let decide = |times: u64| {
        let ours = ours.clone();
        let task = runtime.spawn(async move {
            let start = now();
            for _ in 0..times {
                drop(black_box(ours.decide(KEY).await));
            }
            since_ns(start)
        });
        runtime.block_on(task).expect("it does not panic")
    };
    in_long_turns(vec![
        Case::timed("ping", send(&connection, contenders::ping())),
        Case::timed("script", send(&connection, contenders::one_line(&script))),
        Case::timed("ours", decide),
    ])
}
