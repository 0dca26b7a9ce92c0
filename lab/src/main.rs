//! What each limiter lets through, what a fleet gains, and your own numbers tried in virtual time; with
//! pictures. See `lab/README.md`.
#![forbid(unsafe_code)]

mod algorithms;
mod cli;
mod figures;
mod fleet;
mod picture;
mod redis_server;
mod report;
mod simulate;
mod store;
mod terminal;

use anyhow::Result;
use clap::Parser;

use cli::{Cli, Command};

fn main() -> Result<()> {
    let Cli { settings, command } = Cli::parse();
    cli::allow_many_connections();
    let runtime = tokio::runtime::Runtime::new;
    match command {
        Command::Algorithms => runtime()?.block_on(algorithms::command(&settings)).map(drop),
        Command::Fleet(args) => runtime()?.block_on(fleet::command(&settings, &args)).map(drop),
        // These have clocks, and so runtimes, of their own.
        Command::Simulate(args) => simulate::command(&settings, &args).map(drop),
        Command::Report => report::command(&settings),
    }
}
