//! What a run has to show, and in which figures a peer does better: judged on the figures as printed.

use super::client::{Client, Maker};
use super::quota::Kind;
use super::run::Outcome;
use crate::terminal::{digits, time};

/// The most 429s per success of a fleet that knows the limit.
const REFUSED: f64 = 0.002;

/// A figure of a run, as it is printed; the smaller the better, but for evenness.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) of: fn(&Outcome) -> String,
    /// For comparing: smaller is better.
    rank: fn(&Outcome) -> f64,
}

/// All figures in which runs are compared.
pub(crate) const FIGURES: [Figure; 6] = [
    Figure { name: "time / ideal", of: over_ideal, rank: |it| round(it.time_over_ideal, 100.0) },
    Figure { name: "429s / success", of: per_success, rank: |it| round(it.refused_per_success, 1_000.0) },
    Figure { name: "early", of: |it| it.early.to_string(), rank: |it| f64::from(it.early) },
    Figure { name: "p50", of: |it| time(it.p50_us), rank: |it| round(it.p50_us as f64, 1e-4) },
    Figure { name: "p99", of: |it| time(it.p99_us), rank: |it| round(it.p99_us as f64, 1e-4) },
    Figure { name: "Jain", of: |it| format!("{:.3}", it.jain), rank: |it| -round(it.jain, 1_000.0) },
];

fn round(value: f64, per_unit: f64) -> f64 {
    (value * per_unit).round() / per_unit
}

/// `1.01`, or `>5.00` for a run that was cut.
pub(crate) fn over_ideal(outcome: &Outcome) -> String {
    let cut = if outcome.cut { ">" } else { "" };
    format!("{cut}{}", digits(outcome.time_over_ideal))
}

pub(crate) fn per_success(outcome: &Outcome) -> String {
    match outcome.refused_per_success {
        few if few < 0.1 => format!("{few:.3}"),
        many => digits(many),
    }
}

/// How far from the ideal a fleet that knows the limit may be.
pub(crate) fn most_over_ideal(server: Kind) -> f64 {
    match server {
        Kind::TokenBucket => 1.03,
        Kind::FixedWindow | Kind::SlidingLog => 1.06,
    }
}

/// Whether a run is one that a figure is asked of: ours, with the budget shared by the whole fleet, and told
/// the truth.
pub(crate) fn is_asked(outcome: &Outcome) -> bool {
    let shared = matches!(outcome.plan.client, Client::ForbearRedis | Client::ForbearOneProcess);
    shared && outcome.plan.load.is_known()
}

/// What is not as it has to be: which figure, and how.
pub(crate) fn faults(outcome: &Outcome) -> Vec<(&'static str, String)> {
    let mut faults = Vec::new();
    if is_asked(outcome) {
        let most = most_over_ideal(outcome.plan.server);
        if round(outcome.time_over_ideal, 1_000.0) > most {
            faults.push((FIGURES[0].name, format!("time is over {most} of ideal")));
        }
        if outcome.refused_per_success > REFUSED {
            faults.push((FIGURES[1].name, format!("429s are over {REFUSED} a success")));
        }
    }
    faults
}

/// The peers that need the least and the most time; of equals the one with fewer 429s is the better.
pub(crate) fn best_and_worst_peer<'a>(cell: &[&'a Outcome]) -> Option<(&'a Outcome, &'a Outcome)> {
    let peers = || cell.iter().copied().filter(|it| it.plan.client.maker() == Maker::Peer);
    let [time, refused] = [FIGURES[0].rank, FIGURES[1].rank];
    let order =
        |a: &&Outcome, b: &&Outcome| time(a).total_cmp(&time(b)).then(refused(a).total_cmp(&refused(b)));
    Some((peers().min_by(order)?, peers().max_by(order)?))
}

/// The best peer, if it needs less time than this run.
pub(crate) fn faster_peer<'a>(outcome: &Outcome, cell: &[&'a Outcome]) -> Option<&'a Outcome> {
    let (best, _) = best_and_worst_peer(cell)?;
    ((FIGURES[0].rank)(best) < (FIGURES[0].rank)(outcome)).then_some(best)
}

/// The figures in which some peer does better, with the best one's name: `p50 (reqwest-retry)`.
pub(crate) fn better_peers(outcome: &Outcome, cell: &[&Outcome]) -> Vec<String> {
    let peers = || cell.iter().filter(|it| it.plan.client.maker() == Maker::Peer);
    let better = FIGURES.iter().filter_map(|figure| {
        let best = peers().min_by(|a, b| (figure.rank)(a).total_cmp(&(figure.rank)(b)))?;
        let is_better = (figure.rank)(best) < (figure.rank)(outcome);
        is_better.then(|| format!("{}: {} ({})", figure.name, (figure.of)(best), best.plan.client.name()))
    });
    better.collect()
}

/// Whether this is the best of its cell in a figure; equals are all best.
pub(crate) fn is_best(figure: &Figure, outcome: &Outcome, cell: &[&Outcome]) -> bool {
    cell.iter().all(|other| (figure.rank)(outcome) <= (figure.rank)(other))
}
