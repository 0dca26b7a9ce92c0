//! The scripts of `lua/` beside the algorithms of `src/algorithm/`: one answer, whoever gives it.
//!
//! Everything here asks a real Redis, started for the test, and passes it the clock. Without `redis-server` on the
//! machine the tests fail and say so: a twin that was not asked proves nothing.

mod examples;
mod fleet;
mod keys;
mod model;
mod plan;
mod talk;
mod walks;

use std::cell::RefCell;
use std::collections::HashSet;

use proptest::prelude::ProptestConfig;
use redis::Value;

use super::server_for_tests::RedisServer;
use super::wire::*;
use talk::Talk;

/// Where the walks begin.
const START: u64 = 1 << 50;

/// As many walks as there should be, or as the environment asks for.
fn walks(usual: u32) -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = usual;
    }
    config
}

/// A private Redis, and one connection to it.
struct Twin {
    talk: RefCell<Talk>,
    loaded: RefCell<HashSet<String>>,
    server: RedisServer,
}

impl Twin {
    fn new() -> Self {
        let server = RedisServer::start().expect("these tests need redis-server on the PATH");
        let talk = RefCell::new(Talk::with(&server));
        Self { talk, loaded: RefCell::default(), server }
    }

    fn run(&self, call: &Call) -> Value {
        let known = !self.loaded.borrow_mut().insert(call.script.sha.clone());
        let (command, script) =
            if known { ("EVALSHA", &call.script.sha) } else { ("EVAL", &call.script.text) };
        let count = call.keys.len().to_string();
        let head = [command.as_bytes(), script.as_bytes(), count.as_bytes()];
        let rest = call.keys.iter().chain(&call.args).map(|arg| &arg[..]);
        self.talk.borrow_mut().ask(head.into_iter().chain(rest))
    }

    /// One command, its words separated by spaces.
    fn ask(&self, command: &str) -> Value {
        self.ask_words(&command.split(' ').collect::<Vec<_>>())
    }

    fn ask_words(&self, words: &[&str]) -> Value {
        self.talk.borrow_mut().ask(words.iter().map(|word| word.as_bytes()))
    }

    fn trip(&self, trip: &Trip<'_>) -> Reply {
        trip.reply(self.run(&trip.call())).expect("a reply of ours")
    }
}

fn worker(session: &str) -> Worker {
    Worker {
        session: session.into(),
        channel: "news:".into(),
        lease_us: 10_000_000,
        presence: None,
        born: std::sync::Arc::default(),
    }
}
