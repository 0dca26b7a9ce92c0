//! The load test: three scenarios over real HTTP, every limiter, one replica and two, apart and on Redis.
//!
//! All runs of the first two scenarios go on side by side, each a little after the one before, so that their
//! bursts do not meet on the machine. The third measures how fast a refusal is, so its runs take turns.

mod deployment;
mod limiter;
mod run;
mod scenario;
mod show;

use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use tokio::time::Instant;

use crate::cli::Settings;
use crate::redis_server::{self, RedisServer};
use crate::store::Home;
use crate::terminal;

use deployment::Deployment;
use limiter::Limiter;
use run::{Outcome, Plan};
use scenario::Scenario;

pub(crate) use show::{Report, grids, headline};

/// From one run's begin to the next one's.
const APART: Duration = Duration::from_millis(17);
/// The same for runs that take turns: longer than one takes.
const IN_TURN: Duration = Duration::from_millis(330);
/// A request that is sent so late tells of the machine and not of the limiter.
const LATE_US: u64 = 2_000;
/// How often a run is made, at most or where it measures a time.
const TURNS: usize = 3;
/// For servers to start and connections to be made.
const LEAD: Duration = Duration::from_millis(500);

/// Runs everything, prints it and writes the page.
pub(crate) async fn command(settings: &Settings) -> Result<Report> {
    let redis = match redis_server::missing() {
        None => Some(RedisServer::start().await?),
        Some(why) => {
            terminal::warn(why);
            None
        }
    };
    let report = Report { outcomes: measure(settings, redis.as_ref()).await? };
    settings.print(&grids(&report), &report)?;
    let page = show::page(&report)?;
    settings.write(&page, "algorithms", &report)?;
    Ok(report)
}

async fn measure(settings: &Settings, redis: Option<&RedisServer>) -> Result<Vec<Outcome>> {
    let (together, in_turn) = plans(settings, redis.is_some());
    let turns = if settings.quick { 1 } else { TURNS };
    let progress = terminal::progress((together.len() + turns * in_turn.len()) as u64, "algorithms");
    let mut outcomes = undisturbed(&together, redis, turns, &progress).await?;
    outcomes.extend(middle(&in_turn, redis, turns, &progress).await?);
    progress.finish_and_clear();
    Ok(outcomes)
}

/// Runs all as often; of each the one counts whose slowest refusal is the middle one, for that is a time that a busy
/// machine makes longer.
async fn middle(
    plans: &[Plan],
    redis: Option<&RedisServer>,
    turns: usize,
    progress: &ProgressBar,
) -> Result<Vec<Outcome>> {
    let mut of_each = vec![Vec::new(); plans.len()];
    for _ in 0..turns {
        let outcomes = side_by_side(plans, redis, IN_TURN, progress).await?;
        of_each.iter_mut().zip(outcomes).for_each(|(all, outcome)| all.push(outcome));
    }
    let middle = of_each.into_iter().map(|mut all| {
        all.sort_by_key(|outcome| outcome.slowest_refusal_us);
        all.swap_remove(all.len() / 2)
    });
    Ok(middle.collect())
}

/// Runs all, and those that the machine disturbed once more, whatever they showed; the least disturbed of each
/// counts.
async fn undisturbed(
    plans: &[Plan],
    redis: Option<&RedisServer>,
    turns: usize,
    progress: &ProgressBar,
) -> Result<Vec<Outcome>> {
    let mut outcomes = side_by_side(plans, redis, APART, progress).await?;
    for _ in 1..turns {
        let late = outcomes.iter().filter(|outcome| outcome.late_us > LATE_US).map(|outcome| outcome.plan);
        let late = late.collect::<Vec<_>>();
        progress.inc_length(late.len() as u64);
        for again in side_by_side(&late, redis, APART, progress).await? {
            let first = outcomes.iter_mut().find(|outcome| outcome.plan == again.plan);
            let first = first.expect("it has been run before");
            if again.late_us < first.late_us {
                *first = again;
            }
        }
    }
    Ok(outcomes)
}

/// What is run: first what goes on together, then what takes turns.
fn plans(settings: &Settings, has_redis: bool) -> (Vec<Plan>, Vec<Plan>) {
    let deployments = Deployment::ALL.into_iter().filter(|it| *it != Deployment::TwoOnRedis || has_redis);
    let plans = deployments.flat_map(|deployment| {
        Scenario::ALL.into_iter().flat_map(move |scenario| {
            Limiter::ALL.into_iter().map(move |limiter| Plan { limiter, scenario, deployment })
        })
    });
    // One replica shows what a limiter is, and seats show what replicas are.
    let quick = |plan: &Plan| match plan.scenario {
        Scenario::Boundary | Scenario::Overload => plan.deployment == Deployment::One,
        Scenario::SlowBackend => plan.limiter == Limiter::Concurrency,
    };
    let plans = plans.filter(|plan| !settings.quick || quick(plan));
    plans.partition(|plan| plan.scenario != Scenario::SlowBackend)
}

/// Starts one run after the other, `apart`, and waits for all.
async fn side_by_side(
    plans: &[Plan],
    redis: Option<&RedisServer>,
    apart: Duration,
    progress: &ProgressBar,
) -> Result<Vec<Outcome>> {
    if plans.is_empty() {
        return Ok(Vec::new());
    }
    let begin = Instant::now() + LEAD;
    let runs = plans.iter().zip(0..).map(|(plan, i)| async move {
        let start = begin + apart * i;
        // Connections that lie idle for long would be for nothing.
        tokio::time::sleep_until(start - LEAD).await;
        let prefix = format!("lab{i}-{:?}", plan.limiter);
        let home = match (plan.deployment, redis) {
            (Deployment::TwoOnRedis, Some(server)) => Home::Redis(server, &prefix),
            _ => Home::Local,
        };
        let outcome = plan.run(home, start).await;
        progress.inc(1);
        outcome.with_context(|| format!("{}, {}", plan.limiter.name(), plan.deployment.name()))
    });
    let mut outcomes = Vec::new();
    for outcome in futures_util::future::join_all(runs).await {
        outcomes.push(outcome?);
    }
    Ok(outcomes)
}
