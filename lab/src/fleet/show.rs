//! The fleet as tables and as a page.

use anyhow::Result;
use serde::Serialize;

use super::client::{Client, Maker};
use super::load::{Load, PER_SECOND};
use super::promise::Promise;
use super::quota::Kind;
use super::run::{BIN_US, Outcome};
use super::verdict::{self, FIGURES, Figure};
use crate::picture::{Bar, Bars, Line, Lines, Page};
use crate::terminal::{Cell, Grid, Tone, digits, time};

/// Cells of the matrix that are printed in full; of more only the matrices.
const IN_FULL: usize = 3;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
}

impl Report {
    fn cell(&self, server: Kind, load: Load) -> Vec<&Outcome> {
        self.outcomes.iter().filter(|it| it.plan.server == server && it.plan.load == load).collect()
    }

    /// The cells that were run, in the order of the tables.
    fn cells(&self) -> Vec<(Kind, Load)> {
        let all =
            Kind::ALL.into_iter().flat_map(|server| Load::ALL.into_iter().map(move |load| (server, load)));
        all.filter(|(server, load)| !self.cell(*server, *load).is_empty()).collect()
    }

    fn clients(&self) -> Vec<Client> {
        let ran = |client: &Client| self.outcomes.iter().any(|it| it.plan.client == *client);
        Client::ALL.into_iter().filter(ran).collect()
    }

    fn find(&self, server: Kind, load: Load, client: Client) -> Option<&Outcome> {
        self.outcomes
            .iter()
            .find(|it| (it.plan.server, it.plan.load, it.plan.client) == (server, load, client))
    }

    /// The client of ours that the fleet should use: the one that shares its budget.
    fn champion(&self) -> Client {
        let redis = self.clients().contains(&Client::ForbearRedis);
        if redis { Client::ForbearRedis } else { Client::ForbearOneProcess }
    }

    /// What is not as it has to be, in words.
    fn faults(&self) -> Vec<String> {
        let faults = self.outcomes.iter().flat_map(|outcome| {
            let plan = outcome.plan;
            let place = format!("{}, {}, {}", plan.client.name(), plan.server.name(), plan.load.name());
            verdict::faults(outcome).into_iter().map(move |(_, fault)| format!("{place}: {fault}"))
        });
        faults.collect()
    }

    /// Where a peer needs less time than the fleet that shares its budget, and at what price.
    fn faster_peers(&self) -> Vec<String> {
        let faster = self.cells().into_iter().filter_map(|(server, load)| {
            let (cell, ours) = (self.cell(server, load), self.find(server, load, self.champion())?);
            let peer = verdict::faster_peer(ours, &cell)?;
            let said = |it: &Outcome| {
                let (time, refused) = (verdict::over_ideal(it), verdict::per_success(it));
                format!("{} needs {time} of ideal at {refused} 429s a success", it.plan.client.name())
            };
            let mut note = format!("{}, {}: {}; {}", server.name(), load.name(), said(peer), said(ours));
            if server.has_windows() && self.champion() == Client::ForbearRedis {
                let least = Promise::BOTH.cost(server, load, ours.plan.calls).time_over_ideal;
                note +=
                    &format!("; about {} of ideal is what its promises cost by themselves", digits(least));
            }
            Some(note)
        });
        faster.collect()
    }

    /// What is to be known of all figures.
    pub(crate) fn notes(&self) -> Vec<String> {
        let faults = self.faults();
        let mut notes = match faults.len() {
            0 => vec!["A fleet that knows the limit is as near to the ideal as it must be.".to_owned()],
            _ => faults.into_iter().map(|fault| format!("Not as it must be: {fault}.")).collect(),
        };
        notes.extend(self.faster_peers().into_iter().map(|peer| format!("A peer is faster: {peer}.")));
        let stalled_us = self.outcomes.iter().map(|outcome| outcome.stalled_us).max().unwrap_or(0);
        notes.push(format!(
            "During what counts here this machine was up to {} late with what was due.",
            time(stalled_us)
        ));
        notes
    }
}

/// What a terminal shows.
pub(super) fn printed(report: &Report) -> Vec<Grid> {
    let cells = report.cells();
    let mut grids = if cells.len() > 1 { matrices(report) } else { Vec::new() };
    grids.extend(promises(report));
    let in_full = if cells.len() <= IN_FULL { cells.len() } else { 1 };
    grids.extend(cells.iter().take(in_full).map(|(server, load)| details(report, *server, *load)));
    let last = grids.last_mut().expect("something was run");
    last.notes.extend(report.notes());
    if cells.len() > in_full {
        last.notes.push("All figures of all runs are on the page.".to_owned());
    }
    grids
}

/// For each kind of server, client by load: time over ideal, and 429s per success.
pub(crate) fn matrices(report: &Report) -> Vec<Grid> {
    let servers = Kind::ALL.into_iter().filter(|server| report.cells().iter().any(|(it, _)| it == server));
    servers
        .flat_map(|server| [matrix(report, server, &FIGURES[0]), matrix(report, server, &FIGURES[1])])
        .collect()
}

fn matrix(report: &Report, server: Kind, figure: &Figure) -> Grid {
    let loads = report.cells().into_iter().filter(|(it, _)| *it == server).map(|(_, load)| load);
    let loads = loads.collect::<Vec<_>>();
    let head = std::iter::once("client").chain(loads.iter().map(|load| load.name())).collect::<Vec<_>>();
    let mut grid = Grid::new(format!("{}, against a {}", figure.name, server.name()), &head);
    for client in report.clients() {
        let cells = loads.iter().map(|load| match report.find(server, *load, client) {
            Some(outcome) => {
                let best = verdict::is_best(figure, outcome, &report.cell(server, *load));
                Cell::new((figure.of)(outcome), if best { Tone::Good } else { Tone::Plain })
            }
            None => "–".into(),
        });
        grid.rows.push(std::iter::once(client.name().into()).chain(cells).collect());
    }
    grid
}

/// What two promises cost by themselves, for each kind of server that counts by windows.
pub(crate) fn promises(report: &Report) -> Vec<Grid> {
    Kind::ALL.into_iter().filter_map(|server| promises_of(report, server)).collect()
}

fn promises_of(report: &Report, server: Kind) -> Option<Grid> {
    let loads = report.cells().into_iter().filter(|(it, _)| *it == server).map(|(_, load)| load);
    let loads = loads.collect::<Vec<_>>();
    let calls = report.outcomes.first().filter(|_| server.has_windows() && !loads.is_empty())?.plan.calls;
    let head = std::iter::once("what is kept").chain(loads.iter().map(|load| load.name()));
    let title = format!("What promises cost by themselves, against a {}", server.name());
    let mut grid = Grid::new(title, &head.collect::<Vec<_>>());
    for promise in Promise::ALL {
        let cells = loads.iter().map(|load| {
            let cost = promise.cost(server, *load, calls);
            format!("{}, {:.2}", digits(cost.time_over_ideal), cost.refused_per_success).into()
        });
        grid.rows.push(std::iter::once(promise.name.into()).chain(cells).collect());
    }
    let how = "Time / ideal and 429s / success, computed for a network where each answer takes 1 ms: about what a \
               client can have that keeps these, sends a refused call again when it may, and takes what is left of its \
               budget for used when it is refused.";
    grid.notes.push(how.to_owned());
    Some(grid)
}

/// Every figure of every cell.
pub(crate) fn details_of_all(report: &Report) -> Vec<Grid> {
    report.cells().into_iter().map(|(server, load)| details(report, server, load)).collect()
}

/// Every figure of one cell, and where a peer is better.
fn details(report: &Report, server: Kind, load: Load) -> Grid {
    let cell = report.cell(server, load);
    let figures = FIGURES.iter().map(|figure| figure.name);
    let head = std::iter::once("client").chain(figures).chain(["trips / call", "a peer is better in"]);
    let calls = cell.first().map_or(0, |outcome| outcome.plan.calls);
    let ideal = cell.first().map_or(0.0, |outcome| outcome.ideal_us as f64 / 1e6);
    let title = format!("{}, {}: {calls} calls, ideal {ideal:.2} s", server.name(), load.name());
    let mut grid = Grid::new(title, &head.collect::<Vec<_>>());
    for outcome in &cell {
        let is_ours = outcome.plan.client.maker() == Maker::Ours;
        let failed = verdict::faults(outcome);
        let mut row = vec![Cell::from(outcome.plan.client.name())];
        for figure in &FIGURES {
            let tone = match verdict::is_best(figure, outcome, &cell) {
                _ if failed.iter().any(|(name, _)| *name == figure.name) => Tone::Bad,
                true => Tone::Good,
                false => Tone::Plain,
            };
            row.push(Cell::new((figure.of)(outcome), tone));
        }
        row.push(outcome.trips_per_call.map_or("–".to_owned(), |trips| format!("{trips:.3}")).into());
        let better = if is_ours { verdict::better_peers(outcome, &cell) } else { Vec::new() };
        row.push(if better.is_empty() { "–".to_owned() } else { better.join("; ") }.into());
        grid.rows.push(row);
    }
    let cut = cell.iter().filter(|outcome| outcome.cut);
    grid.notes.extend(cut.map(|outcome| {
        let (name, done, calls) = (outcome.plan.client.name(), outcome.done, outcome.plan.calls);
        format!(
            "{name} was cut after {:.1} s with {done} of {calls} calls done.",
            outcome.time_us as f64 / 1e6
        )
    }));
    grid
}

/// Ours beside the peers in one line a load: for the README.
pub(crate) fn headline(report: &Report) -> Grid {
    let (champion, figures) = (report.champion(), ["time / ideal", "429s / success"]);
    let head =
        ["load", champion.name(), figures[1], "best peer", figures[0], figures[1], "worst peer", figures[0]];
    let mut grid = Grid::new("Time over ideal, against a token bucket of 200 a second", &head);
    for load in Load::ALL {
        let cell = report.cell(Kind::TokenBucket, load);
        let Some(ours) = report.find(Kind::TokenBucket, load, champion) else { continue };
        let Some((best, worst)) = verdict::best_and_worst_peer(&cell) else { continue };
        let [ours, best_figures, worst_figures] =
            [ours, best, worst].map(|it| [verdict::over_ideal(it), verdict::per_success(it)]);
        let mut row = vec![load.name().to_owned()];
        row.extend(ours);
        row.push(best.plan.client.name().to_owned());
        row.extend(best_figures);
        row.push(worst.plan.client.name().to_owned());
        row.push(worst_figures[0].clone());
        grid.rows.push(row.into_iter().map(Cell::from).collect());
    }
    grid
}

/// The page.
pub(super) fn page(report: &Report) -> Result<Page> {
    let calls = report.outcomes.first().map_or(0, |outcome| outcome.plan.calls);
    let lead = format!(
        "Eight clients of sixteen tasks have {calls} calls to make to a server that allows {PER_SECOND} a second \
         (a bucket with a burst of 20) and answers 429 with Retry-After: 1. Ideal is the least time in which the \
         server would let all of them through."
    );
    let mut page = Page::new("A fleet beside its peers", &lead);
    for server in Kind::ALL {
        let loads = report.cells().into_iter().filter(|(it, _)| *it == server).map(|(_, load)| load);
        let loads = loads.collect::<Vec<_>>();
        if loads.is_empty() {
            continue;
        }
        page.chapter(
            &format!("Against a {}", server.name()),
            "Shorter is better; 1 is the ideal. Bars that end at the edge are longer than it.",
        );
        for load in &loads {
            page.bars(&over_ideal(report, server, *load))?;
        }
        page.lines(&admissions(report, server, loads[0]))?;
        page.bars(&waits(report, server, loads[0]))?;
        page.table(&matrix(report, server, &FIGURES[0]));
        page.table(&matrix(report, server, &FIGURES[1]));
        promises_of(report, server).iter().for_each(|grid| page.table(grid));
        for load in &loads {
            page.table(&details(report, server, *load));
        }
    }
    page.chapter("What to know", &report.notes().join(" "));
    Ok(page)
}

fn by_client(
    report: &Report,
    server: Kind,
    load: Load,
    bars: impl Fn(&Outcome) -> Vec<Bar>,
) -> Vec<(String, Vec<Bar>)> {
    let cell = report.cell(server, load);
    cell.into_iter().map(|outcome| (outcome.plan.client.name().to_owned(), bars(outcome))).collect()
}

fn over_ideal(report: &Report, server: Kind, load: Load) -> Bars {
    let bar = |outcome: &Outcome| {
        let label =
            format!("{}, {} 429s a success", verdict::over_ideal(outcome), verdict::per_success(outcome));
        let series = match outcome.plan.client.maker() {
            Maker::Ours => 0,
            Maker::Peer => 1,
        };
        vec![Bar { value: Some(outcome.time_over_ideal), label, series }]
    };
    Bars {
        title: format!("Time over ideal: {}, {}", server.name(), load.name()),
        axis: "time / ideal".to_owned(),
        series: vec!["this library".to_owned(), "others".to_owned()],
        categories: by_client(report, server, load, bar),
        mark: Some((1.0, "the ideal".to_owned())),
        most: Some(4.0),
    }
}

/// Of at most six clients, so that lines can be told apart: ours that share, and each peer at its full limit.
fn admissions(report: &Report, server: Kind, load: Load) -> Lines {
    let shown = [
        Client::ForbearRedis,
        Client::ForbearOneProcess,
        Client::Retry,
        Client::RetryAfter,
        Client::GovernorFull,
        Client::ThrottleNetFull,
    ];
    let lines = shown.into_iter().filter_map(|client| {
        let outcome = report.find(server, load, client)?;
        let span = (1_000_000 / BIN_US) as usize;
        let points = (0..outcome.admissions.len()).map(|bin| {
            let last = outcome.admissions[(bin + 1).saturating_sub(span)..=bin].iter().sum::<u32>();
            ((bin + 1) as f64 * BIN_US as f64 / 1e6, f64::from(last))
        });
        // Of long runs the first part shows what there is to see.
        let shown = points.take_while(|(at, _)| *at <= 2.5 * outcome.ideal_us as f64 / 1e6);
        Some(Line { name: client.name().to_owned(), points: shown.collect() })
    });
    Lines {
        title: format!("Admitted in the last second: {}, {}", server.name(), load.name()),
        x_axis: "seconds since the start".to_owned(),
        y_axis: "requests".to_owned(),
        lines: lines.collect(),
        mark: Some((PER_SECOND as f64, format!("the limit of {PER_SECOND} a second"))),
    }
}

fn waits(report: &Report, server: Kind, load: Load) -> Bars {
    let bar = |us: u64, series| {
        let seconds = us as f64 / 1e6;
        Bar { value: Some(seconds), label: format!("{} s", digits(seconds)), series }
    };
    Bars {
        title: format!("What a call took: {}, {}", server.name(), load.name()),
        axis: "seconds".to_owned(),
        series: vec!["half of all calls took at most".to_owned(), "99 of 100 took at most".to_owned()],
        categories: by_client(report, server, load, |outcome| {
            vec![bar(outcome.p50_us, 0), bar(outcome.p99_us, 1)]
        }),
        ..Bars::default()
    }
}
