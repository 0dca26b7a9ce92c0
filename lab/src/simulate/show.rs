//! A simulation as tables and as a page.

use anyhow::Result;

use super::outcome::Outcome;
use super::run::{Clock, Job};
use crate::picture::{Bar, Bars, Line, Lines, Page};
use crate::terminal::{Cell, Grid, Tone, digits, time};

/// What was run, in a sentence.
pub(super) fn lead(job: &Job, clock: Clock) -> String {
    let limits = job.policy.limits().iter().map(ToString::to_string).collect::<Vec<_>>();
    let who = match job.load.arrivals {
        None => format!("{} workers with {} calls", job.load.workers, job.load.calls),
        Some(rate) => format!("{} calls that come at random, {rate}", job.load.calls),
    };
    let clock = match clock {
        Clock::Virtual => "in virtual time",
        Clock::Real => "in real time",
    };
    format!("{who}, under {}, {clock}", limits.join(" and "))
}

/// The figures of a run, and what was waited for.
pub(crate) fn grids(outcome: &Outcome, lead: &str) -> Vec<Grid> {
    let mut run = Grid::new(lead, &["", "figure"]);
    let mut row = |name: &str, text: String| run.rows.push(vec![name.into(), text.into()]);
    row("makespan", time(outcome.makespan_us));
    row("computed in", time(outcome.real_us));
    row("admitted", outcome.admitted.to_string());
    row("a second", digits(outcome.pace()));
    row("most at once", outcome.most_at_once.to_string());
    let refused = outcome.refused.values().sum::<u64>();
    row("refused", refused.to_string());
    for (why, count) in &outcome.refused {
        row(&format!("  {why}"), count.to_string());
    }
    let waits = &outcome.waits;
    let texts = [waits.mean_us, waits.p50_us, waits.p95_us, waits.p99_us, waits.longest_us].map(time);
    for (name, text) in
        ["wait, mean", "wait, p50", "wait, p95", "wait, p99", "wait, longest"].iter().zip(texts)
    {
        row(name, text);
    }
    let mut waited =
        Grid::new("What was waited for", &["what", "calls", "% of calls", "mean", "longest", "% of waiting"]);
    let all = outcome.waited_for.iter().map(|it| it.total_us).sum::<u64>().max(1) as f64;
    for it in &outcome.waited_for {
        waited.rows.push(vec![
            it.what.as_str().into(),
            it.calls.to_string().into(),
            digits(it.calls as f64 * 100.0 / outcome.admitted.max(1) as f64).into(),
            time(it.total_us / it.calls.max(1)).into(),
            time(it.longest_us).into(),
            digits(it.total_us as f64 * 100.0 / all).into(),
        ]);
    }
    let mut limits =
        Grid::new("Limits on requests", &["limit", "quota", "period", "most in any period", "kept"]);
    for used in &outcome.limits {
        // A bucket promises its rate and besides a burst, so more than the quota is no fault of it.
        let within = used.most_in_a_period <= used.quota;
        let kept = Cell::new(
            if within { "yes" } else { "with its burst" },
            if within { Tone::Good } else { Tone::Plain },
        );
        let texts = [
            used.limit.clone(),
            used.quota.to_string(),
            time(used.period_us),
            used.most_in_a_period.to_string(),
        ];
        limits.rows.push(texts.into_iter().map(Cell::from).chain([kept]).collect());
    }
    let mut grids = vec![run, waited, limits];
    grids.retain(|grid| !grid.rows.is_empty());
    grids
}

/// The page.
pub(super) fn page(outcome: &Outcome, lead: &str) -> Result<Page> {
    let mut page = Page::new("A policy under a load", &format!("{lead}."));
    page.chapter(
        "Admissions over time",
        "What was let go, a second, beside what the limit allows on average.",
    );
    page.lines(&admissions(outcome))?;
    page.chapter("Waits", "How long calls waited for their permit, and what they waited for.");
    page.bars(&waits(outcome))?;
    if !outcome.waited_for.is_empty() {
        page.bars(&waited_for(outcome))?;
    }
    page.chapter("All figures", "");
    grids(outcome, lead).iter().for_each(|grid| page.table(grid));
    Ok(page)
}

fn admissions(outcome: &Outcome) -> Lines {
    let bin = outcome.bin_us as f64 / 1e6;
    let points = outcome.admissions.iter().zip(0..).flat_map(|(count, i)| {
        let pace = f64::from(*count) / bin;
        [(f64::from(i) * bin, pace), (f64::from(i + 1) * bin, pace)]
    });
    let tightest = outcome.limits.iter().map(|it| it.quota as f64 / (it.period_us as f64 / 1e6));
    let tightest = tightest.reduce(f64::min);
    Lines {
        title: "Admissions over time".to_owned(),
        x_axis: "seconds".to_owned(),
        y_axis: "calls a second".to_owned(),
        lines: vec![Line { name: "admitted a second".to_owned(), points: points.collect() }],
        mark: tightest.map(|pace| (pace, format!("the limit, {} a second", digits(pace)))),
    }
}

fn waits(outcome: &Outcome) -> Bars {
    // Bins that are as good as empty at both ends say nothing.
    let is_filled = |(_, count): &(Option<u64>, u64)| *count * 1_000 >= outcome.admitted;
    let first = outcome.histogram.iter().position(is_filled).unwrap_or(0);
    let last = outcome.histogram.iter().rposition(is_filled).unwrap_or(0);
    let mut before = first.checked_sub(1).and_then(|before| outcome.histogram[before].0);
    let categories = outcome.histogram[first..=last].iter().map(|(bound, count)| {
        let name = match (before, bound) {
            (None, _) => "no wait".to_owned(),
            (Some(from), Some(to)) => format!("{} to {}", time(from), time(*to)),
            (Some(from), None) => format!("over {}", time(from)),
        };
        before = *bound;
        let part = *count as f64 * 100.0 / outcome.admitted.max(1) as f64;
        (name, vec![Bar { value: Some(part), label: format!("{part:.1} % ({count})"), series: 0 }])
    });
    Bars {
        title: "How long calls waited".to_owned(),
        axis: "% of calls".to_owned(),
        series: vec!["calls".to_owned()],
        categories: categories.collect(),
        ..Bars::default()
    }
}

fn waited_for(outcome: &Outcome) -> Bars {
    let all = outcome.waited_for.iter().map(|it| it.total_us).sum::<u64>().max(1) as f64;
    let categories = outcome.waited_for.iter().map(|it| {
        let part = it.total_us as f64 * 100.0 / all;
        (
            it.what.clone(),
            vec![Bar { value: Some(part), label: format!("{part:.1} %, {} calls", it.calls), series: 0 }],
        )
    });
    Bars {
        title: "What they waited for".to_owned(),
        axis: "% of all waiting".to_owned(),
        series: vec!["waiting".to_owned()],
        categories: categories.collect(),
        ..Bars::default()
    }
}
