//! The scripts, put together from the files in `lua/`.
//!
//! Redis runs one text and knows no modules, so each entry point is sent behind the files that it calls. A script
//! holds every kind of limit, for any key may hold the state of a kind that a policy had before; a kind's functions
//! are made only where one of its states is met. The text must not depend on the policy: Redis keeps each text for
//! ever.

use std::sync::LazyLock;

/// One script: its text, and the hash under which Redis knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
}

/// What every entry point calls, in the order in which it is defined.
const SHARED: [&str; 6] = [
    include_str!("../../../lua/exact.lua"),
    include_str!("../../../lua/gcra.lua"),
    include_str!("../../../lua/window.lua"),
    include_str!("../../../lua/sliding_counter.lua"),
    include_str!("../../../lua/sliding_log.lua"),
    include_str!("../../../lua/rule.lua"),
];
/// Comes before all that the others define: it mostly ends the call.
const QUICK: &str = include_str!("../../../lua/quick.lua");
const PAUSE_KEY: &str = include_str!("../../../lua/pause_key.lua");
const SEATS: &str = include_str!("../../../lua/seats.lua");

pub(super) static BOOK: LazyLock<Script> =
    LazyLock::new(|| Script::new(QUICK, &[PAUSE_KEY, SEATS, include_str!("../../../lua/book.lua")]));
pub(super) static SETTLE: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[include_str!("../../../lua/settle.lua")]));
pub(super) static GIVE_BACK: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[PAUSE_KEY, include_str!("../../../lua/give_back.lua")]));
pub(super) static PAUSE: LazyLock<Script> =
    LazyLock::new(|| Script::new("", &[PAUSE_KEY, include_str!("../../../lua/pause.lua")]));

impl Script {
    fn new(first: &str, own: &[&str]) -> Self {
        // Lua clears a place for every local of a function that it enters: what mostly is not reached is a function
        // of its own.
        let (opens, closes) = if first.is_empty() { ("", "") } else { ("return (function()", "end)()") };
        let before = [first, opens].into_iter().chain(SHARED);
        let lines = before.chain(own.iter().copied()).chain([closes]).flat_map(str::lines);
        // Comments are for readers of `lua/`; a script is sent again after each restart of Redis.
        let code = lines.filter(|line| !line.trim_start().starts_with("--") && !line.trim().is_empty());
        let text = code.collect::<Vec<_>>().join("\n");
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}
