//! The command line.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::picture::Page;
use crate::simulate;
use crate::terminal::{self, Grid};

/// Shows, on your own machine, what each limiter lets through and what a wrapped fleet gains.
#[derive(Debug, Parser)]
#[command(name = "forbear-lab", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What holds for each command.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Print the raw figures as JSON instead of tables.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// A few seconds instead of minutes: fewer runs, and less of each.
    #[arg(long, global = true)]
    pub(crate) quick: bool,
    /// Where pages and raw figures are written.
    #[arg(long, global = true, value_name = "FOLDER", default_value = "target/lab")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Every limiter under three loads, over real HTTP: what the backend really saw.
    Algorithms,
    /// A fleet of clients against servers that limit it: this library beside others.
    Fleet(FleetArgs),
    /// Your policy under your load in virtual time, by the limiter that runs in production.
    Simulate(simulate::SimulateArgs),
    /// All of the above, and the README's figures and lab/RESULTS.md made of it.
    Report,
}

/// Which part of the matrix to run.
#[derive(Debug, Clone, Args)]
pub(crate) struct FleetArgs {
    /// Only clients, servers or loads whose name contains this; several narrow it further.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// Runs that go on at a time.
    #[arg(long, value_name = "N", default_value_t = Self::SIDE_BY_SIDE)]
    pub(crate) side_by_side: usize,
}

impl FleetArgs {
    /// What two cores carry without delaying one another.
    pub(crate) const SIDE_BY_SIDE: usize = 8;
}

impl Settings {
    /// Tables, or the raw figures.
    pub(crate) fn print(&self, grids: &[Grid], figures: &impl Serialize) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(figures)?);
        } else {
            grids.iter().for_each(Grid::print);
        }
        Ok(())
    }

    /// The page, and where it is.
    pub(crate) fn write(&self, page: &Page, name: &str, figures: &impl Serialize) -> Result<()> {
        page.write(&self.out, name, figures)?;
        if !self.json {
            let path = self.out.join(name);
            println!("\nwritten: {0}.html, {0}.json", path.display());
        }
        Ok(())
    }
}

/// Each open connection is two files of this process.
pub(crate) fn allow_many_connections() {
    const WANTED: u64 = 16_384;
    match rlimit::increase_nofile_limit(WANTED) {
        Ok(allowed) if allowed < 6_000 => {
            terminal::warn(&format!(
                "only {allowed} open files are allowed here; raise it by `ulimit -n 8192`"
            ));
        }
        _ => {}
    }
}
