//! Your numbers, tried before they are shipped: your policy under your load, in virtual time.

mod load_file;
mod outcome;
mod policy_file;
mod run;
mod show;
mod text;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use forbear::Rate;
use serde::de::DeserializeOwned;

use crate::cli::Settings;
use crate::terminal;

use load_file::Load;
use policy_file::PolicyFile;
use run::{Clock, Job};
use text::{Takes, Time};

pub(crate) use outcome::Outcome;
pub(crate) use show::grids;

/// A policy and a load: as files, as flags, or flags over files.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SimulateArgs {
    /// The policy: `limits = ["500/s burst 50", "64 at once"]`, `max_wait = "30s"`.
    #[arg(value_name = "policy.toml")]
    policy: Option<PathBuf>,
    /// The load: `workers = 1000`, `calls = 1_000_000`, `takes = "20ms to 80ms"`.
    #[arg(value_name = "load.toml")]
    load: Option<PathBuf>,
    /// A limit, instead of a policy's; several hold together.
    #[arg(long = "limit", value_name = "500/min")]
    limits: Vec<String>,
    /// How long a call may be held back.
    #[arg(long, value_name = "TIME")]
    max_wait: Option<Time>,
    /// Workers that make one call after the other.
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Instead of workers: so many calls come at random.
    #[arg(long, value_name = "300/s")]
    arrivals: Option<Rate>,
    /// Calls in all.
    #[arg(long, value_name = "N")]
    calls: Option<u64>,
    /// What a call takes, from its permit on.
    #[arg(long, value_name = "20ms to 80ms")]
    takes: Option<Takes>,
    /// Where randomness begins.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// On the real clock, to see that both agree.
    #[arg(long)]
    real_time: bool,
}

/// Runs it, prints it and writes the page.
pub(crate) fn command(settings: &Settings, args: &SimulateArgs) -> Result<Outcome> {
    let job = args.job()?;
    let (clock, lead) = (args.clock(), args.lead()?);
    let progress = terminal::progress(job.load.calls, "simulate");
    let outcome = job.run(clock, progress)?;
    settings.print(&grids(&outcome, &lead), &outcome)?;
    settings.write(&show::page(&outcome, &lead)?, "simulate", &outcome)?;
    Ok(outcome)
}

impl SimulateArgs {
    /// What the report shows: a thousand workers and a million calls.
    pub(crate) fn a_million() -> Self {
        Self {
            limits: vec!["2000/s burst 100".to_owned(), "500 at once".to_owned()],
            max_wait: Some("10min".parse().expect("it is a time")),
            workers: Some(1_000),
            calls: Some(1_000_000),
            takes: Some("20ms to 80ms".parse().expect("it is a range")),
            ..Self::default()
        }
    }

    /// What is run, in a sentence.
    pub(crate) fn lead(&self) -> Result<String> {
        Ok(show::lead(&self.job()?, self.clock()))
    }

    fn clock(&self) -> Clock {
        if self.real_time { Clock::Real } else { Clock::Virtual }
    }

    fn job(&self) -> Result<Job> {
        let policy = match &self.policy {
            Some(path) => read::<PolicyFile>(path)?.policy()?,
            None => PolicyFile::of(&self.limits, self.max_wait).policy()?,
        };
        let policy = match self.max_wait {
            Some(Time(max_wait)) => policy.max_wait(max_wait),
            None => policy,
        };
        let load = match &self.load {
            Some(path) => read::<Load>(path)?,
            None => Load::default(),
        };
        let load = Load {
            workers: self.workers.unwrap_or(load.workers),
            arrivals: self.arrivals.or(load.arrivals),
            calls: self.calls.unwrap_or(load.calls),
            takes: self.takes.unwrap_or(load.takes),
            seed: self.seed.unwrap_or(load.seed),
            ..load
        };
        Ok(Job { policy, load })
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("in {}", path.display()))
}
