//! Prints what the fleet was measured to do beside what is asked of it: promises, trips, cancels, late joiners,
//! the fleet run over HTTP, pauses, decisions a second.
//!
//! Workers are this binary once more; it starts and ends its own redis-server. Without arguments everything is
//! measured, in about six minutes; else what is named.
//!
//! ```text
//! cargo bench -p forbear-benches --features fleet --bench fleet [-- NAME...]
//! ```

#[path = "../../../tests/kit/fleet.rs"]
mod fleet;
#[path = "../../../tests/kit/fleet_http.rs"]
mod fleet_http;
#[path = "../../../tests/kit/fleet_load.rs"]
mod fleet_load;
#[path = "../../../tests/kit/redis_process.rs"]
mod redis_process;

mod cancels;
mod decisions;
mod http_run;
mod pauses;
mod promises;
mod tireless;
mod trips;

/// One line of the table.
pub(crate) struct Line {
    what: String,
    measured: String,
    asked: String,
    met: Option<bool>,
}

impl Line {
    pub(crate) fn at_most(what: impl Into<String>, measured: f64, asked: f64) -> Self {
        let (shown, limit) = (format!("{measured:.3}"), format!("at most {asked}"));
        Self { what: what.into(), measured: shown, asked: limit, met: Some(measured <= asked) }
    }

    pub(crate) fn at_least(what: impl Into<String>, measured: f64, asked: f64) -> Self {
        let (shown, limit) = (format!("{measured:.3}"), format!("at least {asked}"));
        Self { what: what.into(), measured: shown, asked: limit, met: Some(measured >= asked) }
    }

    /// What must hold without a number, and why it does not.
    pub(crate) fn holds(what: impl Into<String>, outcome: Result<(), String>) -> Self {
        let met = Some(outcome.is_ok());
        let measured = outcome.err().unwrap_or_else(|| "none".to_owned());
        Self { what: what.into(), measured, asked: "none".to_owned(), met }
    }

    /// A figure of which nothing is asked.
    pub(crate) fn told(what: impl Into<String>, measured: impl Into<String>) -> Self {
        Self { what: what.into(), measured: measured.into(), asked: String::new(), met: None }
    }
}

type Group = (&'static str, fn() -> Vec<Line>);

const GROUPS: [Group; 7] = [
    ("promises", promises::lines),
    ("trips", trips::lines),
    ("cancels", cancels::lines),
    ("joiners", cancels::joiners),
    ("http", http_run::lines),
    ("pauses", pauses::lines),
    ("decisions", decisions::lines),
];

fn main() {
    if fleet_load::work() || fleet_http::work() {
        return;
    }
    // Cargo adds an argument of its own.
    let named = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect::<Vec<_>>();
    if let Some(name) = named.iter().find(|name| GROUPS.iter().all(|(group, _)| group != name)) {
        let names = GROUPS.map(|(name, _)| name).join(", ");
        eprintln!("nothing here is called {name}; there are {names}");
        std::process::exit(2);
    }
    let mut lines = Vec::new();
    for (name, measure) in
        GROUPS.iter().filter(|(name, _)| named.is_empty() || named.contains(&(*name).into()))
    {
        eprintln!("measuring {name}");
        lines.extend(measure());
    }
    println!("| what | measured | asked | |");
    println!("|---|---|---|---|");
    for Line { what, measured, asked, met } in lines {
        let met = met.map_or("", |met| if met { "met" } else { "not met" });
        println!("| {what} | {measured} | {asked} | {met} |");
    }
}
