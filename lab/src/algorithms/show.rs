//! The load test as tables and as a page.

use anyhow::Result;
use serde::Serialize;

use super::deployment::Deployment;
use super::limiter::{BUDGET, Figure, Limiter};
use super::run::Outcome;
use super::scenario::Scenario;
use crate::figures::percentile;
use crate::picture::{Bar, Bars, Line, Lines, Page};
use crate::terminal::{Cell, Grid, Tone, time};

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
}

impl Report {
    fn of(&self, scenario: Scenario) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(move |outcome| outcome.plan.scenario == scenario)
    }

    fn find(&self, scenario: Scenario, limiter: Limiter, deployment: Deployment) -> Option<&Outcome> {
        self.of(scenario).find(|it| it.plan.limiter == limiter && it.plan.deployment == deployment)
    }

    /// Those that were run.
    fn deployments(&self) -> Vec<Deployment> {
        let ran = |it: &Deployment| self.outcomes.iter().any(|outcome| outcome.plan.deployment == *it);
        Deployment::ALL.into_iter().filter(ran).collect()
    }

    /// Figures that are not what they have to be.
    pub(crate) fn faults(&self) -> usize {
        self.outcomes.iter().filter(|outcome| !outcome.is_as_it_must()).count()
    }
}

/// A table for each scenario, and one of what Redis adds.
pub(crate) fn grids(report: &Report) -> Vec<Grid> {
    let mut grids = Scenario::ALL.into_iter().map(|scenario| grid(report, scenario)).collect::<Vec<_>>();
    grids.retain(|grid| !grid.rows.is_empty());
    if report.deployments().contains(&Deployment::TwoOnRedis) {
        grids.push(added_latency(report));
    }
    if let Some(last) = grids.last_mut() {
        last.notes.push(match report.faults() {
            0 => "Everything is as it must be.".to_owned(),
            faults => format!("{faults} runs are not as they must be."),
        });
        let late_us = report.outcomes.iter().map(|outcome| outcome.late_us).max().unwrap_or(0);
        last.notes.push(format!(
            "This machine sent requests up to {} late; a busy one says little about limiters.",
            time(late_us)
        ));
    }
    grids
}

fn grid(report: &Report, scenario: Scenario) -> Grid {
    let head = [
        "limiter",
        "replicas",
        "admitted",
        "most in 1 s",
        "at once",
        "p50",
        "p95",
        "refused",
        "Retry-After",
        "must be",
    ];
    let mut grid = Grid::new(scenario.title(), &head);
    for limiter in Limiter::ALL {
        for outcome in report.of(scenario).filter(|outcome| outcome.plan.limiter == limiter) {
            grid.rows.push(row(outcome));
        }
    }
    grid
}

fn row(outcome: &Outcome) -> Vec<Cell> {
    let cell = |figures: &[Figure], text: String| {
        let verdicts = outcome.verdicts.iter().filter(|verdict| figures.contains(&verdict.figure));
        let met = verdicts.map(|verdict| verdict.met).reduce(|all, met| all && met);
        Cell::new(text, met.map_or(Tone::Plain, |met| if met { Tone::Good } else { Tone::Bad }))
    };
    let must = outcome.verdicts.iter().map(|verdict| {
        let figure = match verdict.figure {
            Figure::MostInASecond => "in 1 s",
            Figure::MostInSegments => "in whole segments",
            Figure::Admitted => "admitted",
            Figure::P95Millis => "p95",
            Figure::MostAtOnce => "at once",
            Figure::Refused => "refused",
            Figure::SlowestRefusalMillis => "refusals within",
        };
        let not = if verdict.met { "" } else { " (is not)" };
        format!("{figure} {}{not}", verdict.must)
    });
    let must = must.collect::<Vec<_>>().join(", ");
    let fast = outcome.verdicts.iter().any(|verdict| verdict.figure == Figure::SlowestRefusalMillis);
    let refused = if fast {
        format!("{}, in {}", outcome.refused, time(outcome.slowest_refusal_us))
    } else {
        outcome.refused.to_string()
    };
    let met = if outcome.is_as_it_must() { Tone::Plain } else { Tone::Bad };
    vec![
        outcome.plan.limiter.name().into(),
        outcome.plan.deployment.name().into(),
        cell(&[Figure::Admitted], outcome.admitted.to_string()),
        cell(&[Figure::MostInASecond], outcome.most_in_a_second.to_string()),
        cell(&[Figure::MostAtOnce], outcome.most_at_once.to_string()),
        time(outcome.p50_us).into(),
        cell(&[Figure::P95Millis], time(outcome.p95_us)),
        cell(&[Figure::Refused, Figure::SlowestRefusalMillis], refused),
        retry_after(outcome).into(),
        Cell::new(if must.is_empty() { "–".to_owned() } else { must }, met),
    ]
}

/// `1 s: 60`, each value with how often it came.
fn retry_after(outcome: &Outcome) -> String {
    let values = outcome.retry_after.iter().map(|(value, count)| match value.as_str() {
        "none" => format!("none: {count}"),
        value => format!("{value} s: {count}"),
    });
    match values.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "–".to_owned(),
        values => values,
    }
}

/// For the README: the busiest second, and what sustained overload gets through.
pub(crate) fn headline(report: &Report) -> Grid {
    let deployments = report.deployments();
    let mut head = vec!["limiter".to_owned(), "burst across a boundary: most in 1 s".to_owned()];
    head.extend(deployments.iter().map(|it| format!("overload: admitted of 90, {}", it.name())));
    let mut grid = Grid { head, ..Grid::default() };
    for limiter in Limiter::ALL.into_iter().filter(|limiter| *limiter != Limiter::Concurrency) {
        let burst = report.find(Scenario::Boundary, limiter, Deployment::One);
        let number = |it: Option<&Outcome>, of: fn(&Outcome) -> usize| {
            it.map_or("–".to_owned(), |it| of(it).to_string())
        };
        let mut row = vec![Cell::from(limiter.name()), number(burst, |it| it.most_in_a_second).into()];
        row.extend(deployments.iter().map(|deployment| {
            number(report.find(Scenario::Overload, limiter, *deployment), |it| it.admitted).into()
        }));
        grid.rows.push(row);
    }
    grid
}

/// Two replicas apart beside two on Redis, for limiters that hold nothing.
fn added_latency(report: &Report) -> Grid {
    let head = ["limiter", "apart p50", "on Redis p50", "added", "apart p95", "on Redis p95", "added p95"];
    let mut grid = Grid::new("What Redis adds to the latency of an admitted request, scenario 2", &head);
    let (mut all, mut all_shared) = (Vec::new(), Vec::new());
    let row = |name: &str, apart: &mut Vec<u64>, shared: &mut Vec<u64>| {
        let mut cells = vec![Cell::from(name)];
        for percent in [50, 95] {
            let (apart, shared) = (percentile(apart, percent), percentile(shared, percent));
            cells.push(time(apart).into());
            cells.push(time(shared).into());
            cells.push(format!("{:+.2} ms", (shared as f64 - apart as f64) / 1e3).into());
        }
        cells
    };
    for limiter in Limiter::ALL.into_iter().filter(|limiter| !limiter.holds()) {
        let find = |deployment| report.find(Scenario::Overload, limiter, deployment);
        if let (Some(apart), Some(shared)) = (find(Deployment::Two), find(Deployment::TwoOnRedis)) {
            let (mut apart, mut shared) = (apart.latencies_us.clone(), shared.latencies_us.clone());
            grid.rows.push(row(limiter.name(), &mut apart, &mut shared));
            all.extend(apart);
            all_shared.extend(shared);
        }
    }
    grid.rows.push(row("all of them", &mut all, &mut all_shared));
    grid.notes.push("The leaky bucket is left out: it holds requests on purpose.".to_owned());
    grid
}

/// The page.
pub(crate) fn page(report: &Report) -> Result<Page> {
    let mut page = Page::new(
        "What each limiter lets through",
        "Every limiter on one budget, 10 requests a second or 4 at once, over real HTTP on the loopback. What \
         counts is the most that the backend saw in any span of a second, at the instants of the decisions.",
    );
    page.chapter(
        "The backend's busiest second",
        "Each limiter under the burst across the boundary and under sustained overload, by how many replicas \
         there are and where they keep their state.",
    );
    for scenario in [Scenario::Boundary, Scenario::Overload] {
        page.bars(&busiest(report, scenario))?;
    }
    page.bars(&admitted(report))?;
    page.chapter(
        "Admissions over time",
        "Sustained overload, limiter by limiter: what was admitted in the second before each instant.",
    );
    for limiter in Limiter::ALL {
        let lines = over_time(report, limiter);
        if !lines.lines.is_empty() {
            page.lines(&lines)?;
        }
    }
    page.chapter(
        "Waits",
        "How long admitted requests took under sustained overload, as a distribution. Only the leaky bucket \
         holds requests on purpose.",
    );
    page.lines(&waits(report))?;
    page.chapter("All figures", "Green is what has to come out and did, red what did not.");
    grids(report).iter().for_each(|grid| page.table(grid));
    Ok(page)
}

/// A category for each limiter, a series for each deployment.
fn by_deployment(
    report: &Report,
    scenario: Scenario,
    (title, axis): (&str, &str),
    figure: impl Fn(&Outcome) -> usize,
) -> Bars {
    let deployments = report.deployments();
    let categories = Limiter::ALL.into_iter().map(|limiter| {
        let bars = deployments.iter().zip(0..).map(|(deployment, series)| {
            match report.find(scenario, limiter, *deployment) {
                Some(outcome) => {
                    let value = figure(outcome);
                    Bar { value: Some(value as f64), label: value.to_string(), series }
                }
                None => Bar { value: None, label: "not run".to_owned(), series },
            }
        });
        (limiter.name().to_owned(), bars.collect())
    });
    Bars {
        title: title.to_owned(),
        axis: axis.to_owned(),
        series: deployments.iter().map(|deployment| deployment.name().to_owned()).collect(),
        categories: categories.collect(),
        ..Bars::default()
    }
}

fn busiest(report: &Report, scenario: Scenario) -> Bars {
    let (number, _) = scenario.title().split_once(" (").unwrap_or((scenario.title(), ""));
    let title = format!("Most in any one second, scenario {number}");
    let bars = by_deployment(report, scenario, (&title, "requests in the busiest second"), |outcome| {
        outcome.most_in_a_second
    });
    Bars { mark: Some((BUDGET as f64, "the budget of 10 a second".to_owned())), ..bars }
}

fn admitted(report: &Report) -> Bars {
    let text = ("Admitted of 90 in three seconds, scenario 2", "requests admitted");
    let bars = by_deployment(report, Scenario::Overload, text, |outcome| outcome.admitted);
    Bars { mark: Some((30.0, "three seconds of the budget".to_owned())), ..bars }
}

fn over_time(report: &Report, limiter: Limiter) -> Lines {
    const STEP_US: u64 = 25_000;
    let lines = report.deployments().into_iter().filter_map(|deployment| {
        let outcome = report.find(Scenario::Overload, limiter, deployment)?;
        let points = (0..160).map(|step| {
            let at = step * STEP_US;
            let last = outcome.admissions_us.iter().filter(|us| **us <= at && **us + 1_000_000 > at);
            (at as f64 / 1e6, last.count() as f64)
        });
        Some(Line { name: deployment.name().to_owned(), points: points.collect() })
    });
    Lines {
        title: format!("{}: admitted in the last second", limiter.name()),
        x_axis: "seconds since the first request".to_owned(),
        y_axis: "requests".to_owned(),
        lines: lines.collect(),
        mark: Some((BUDGET as f64, "the budget of 10 a second".to_owned())),
    }
}

/// One line a limiter: which part of its requests took at most so long.
fn waits(report: &Report) -> Lines {
    let lines = Limiter::ALL.into_iter().filter_map(|limiter| {
        let outcome = report.find(Scenario::Overload, limiter, Deployment::One)?;
        let all = outcome.latencies_us.len() as f64;
        let points = outcome.latencies_us.iter().zip(1..).flat_map(|(us, rank)| {
            let millis = *us as f64 / 1e3;
            [(millis, f64::from(rank - 1) / all * 100.0), (millis, f64::from(rank) / all * 100.0)]
        });
        Some(Line { name: limiter.name().to_owned(), points: points.collect() })
    });
    Lines {
        title: "How long admitted requests took, one replica".to_owned(),
        x_axis: "milliseconds at most".to_owned(),
        y_axis: "% of requests".to_owned(),
        lines: lines.collect(),
        mark: None,
    }
}
