//! The fleet: eight clients of sixteen tasks have two thousand calls to make to a server that limits them.
//!
//! Every client that people use does the same job against the same server, in each kind of server and under
//! each load. Runs go on side by side, as many as a machine of two cores carries without delaying them; each
//! has a server of its own, and if need be a Redis of its own, so that none sees another.

mod client;
mod load;
mod ours;
mod peers;
mod promise;
mod quota;
mod run;
mod server;
mod show;
mod verdict;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cli::{FleetArgs, Settings};
use crate::redis_server;
use crate::terminal;

use client::Client;
use load::Load;
use quota::Kind;
use run::{Outcome, Plan};

pub(crate) use show::{Report, details_of_all, headline, matrices, promises};

/// The server's windows.
const SECOND: Duration = Duration::from_secs(1);
/// A run during which a timer was later than the margin that a wrapped client leaves by default tells of the machine.
const STALLED_US: u64 = 20_000;
/// How often such a run is made again.
const AGAIN: usize = 3;
/// How often a run is made in which the quota is not as the clients were told.
const TURNS: usize = 3;
/// Calls of the job.
const CALLS: u32 = 2_000;
/// The same for a quick look.
const QUICK_CALLS: u32 = 240;

/// Runs what is asked for, prints it and writes the page.
pub(crate) async fn command(settings: &Settings, args: &FleetArgs) -> Result<Report> {
    let missing = redis_server::missing();
    if let Some(why) = missing {
        terminal::warn(why);
    }
    let mut plans = plans(settings, args);
    plans.retain(|plan| missing.is_none() || !plan.client.is_on_redis());
    if plans.is_empty() {
        bail!("no run has a name that contains {:?}", args.only);
    }
    let report = Report { outcomes: measure(plans, args.side_by_side).await? };
    settings.print(&show::printed(&report), &report)?;
    settings.write(&show::page(&report)?, "fleet", &report)?;
    Ok(report)
}

/// All that was asked for, in the order of the tables.
fn plans(settings: &Settings, args: &FleetArgs) -> Vec<Plan> {
    let calls = if settings.quick { QUICK_CALLS } else { CALLS };
    let cells =
        Kind::ALL.into_iter().flat_map(|server| Load::ALL.into_iter().map(move |load| (server, load)));
    let quick = |(server, load): &(Kind, Load)| *server == Kind::TokenBucket && *load == Load::Even;
    let cells = cells.filter(|cell| !settings.quick || quick(cell));
    let plans = cells.flat_map(|(server, load)| {
        Client::ALL.into_iter().map(move |client| Plan { client, server, load, calls })
    });
    let named = |plan: &Plan, text: &String| {
        [plan.client.name(), plan.server.name(), plan.load.name()].iter().any(|name| name.contains(text))
    };
    plans.filter(|plan| args.only.iter().all(|text| named(plan, text))).collect()
}

/// Runs all, and those again during which the machine stood still, whatever they showed; of each the one that was
/// disturbed least counts. Where the quota is not as the clients were told, chance decides how long the last refused
/// calls have to wait: of several runs the one counts whose time is the middle one.
async fn measure(plans: Vec<Plan>, at_a_time: usize) -> Result<Vec<Outcome>> {
    let turns = |plan: &Plan| if plan.load.is_known() { 1 } else { TURNS };
    let all = plans.iter().flat_map(|plan| std::iter::repeat_n(*plan, turns(plan))).collect::<Vec<_>>();
    let progress = terminal::progress(all.len() as u64, "fleet");
    let mut outcomes = side_by_side(all, at_a_time, &progress).await?;
    for _ in 0..AGAIN {
        let disturbed =
            outcomes.iter_mut().filter(|outcome| outcome.stalled_us > STALLED_US).collect::<Vec<_>>();
        progress.inc_length(disturbed.len() as u64);
        let again = disturbed.iter().map(|outcome| outcome.plan).collect();
        for (again, before) in side_by_side(again, at_a_time, &progress).await?.into_iter().zip(disturbed) {
            if again.stalled_us < before.stalled_us {
                *before = again;
            }
        }
    }
    progress.finish_and_clear();
    let middle = plans.iter().map(|plan| {
        let mut of_plan = outcomes.extract_if(.., |outcome| outcome.plan == *plan).collect::<Vec<_>>();
        of_plan.sort_by(|one, other| one.time_over_ideal.total_cmp(&other.time_over_ideal));
        of_plan.swap_remove(of_plan.len() / 2)
    });
    Ok(middle.collect())
}

/// Runs them, so many at a time, the longest first. Each begins at a part of a second of its own: what limits by windows
/// of a second lets all go at once, and bursts that meet would delay one another.
async fn side_by_side(plans: Vec<Plan>, at_a_time: usize, progress: &ProgressBar) -> Result<Vec<Outcome>> {
    let mut numbered = plans.into_iter().enumerate().collect::<Vec<_>>();
    numbered.sort_by_key(|(_, plan)| std::cmp::Reverse(plan.weight()));
    let (start, at_a_time) = (Instant::now(), at_a_time.max(1));
    let queue = Mutex::new(numbered.into_iter());
    let next = || queue.lock().next();
    let lanes = (0..at_a_time).map(|lane| async move {
        let beat = start + SECOND * lane as u32 / at_a_time as u32;
        let mut outcomes = Vec::new();
        while let Some((i, plan)) = next() {
            // A task of its own, so that many runs use both cores.
            let outcome = tokio::spawn(plan.run(beat)).await?;
            let name = format!("{} / {} / {}", plan.server.name(), plan.load.name(), plan.client.name());
            progress.inc(1);
            outcomes.push((i, outcome.context(name.clone())?));
            progress.set_message(name);
        }
        anyhow::Ok(outcomes)
    });
    let mut outcomes = try_join_all(lanes).await?.concat();
    outcomes.sort_by_key(|(i, _)| *i);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}
