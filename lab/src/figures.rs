//! What is computed of raw measurements: ranks, the busiest span, evenness. Pure arithmetic on microseconds.

/// The smallest value that at least `percent` of all values do not exceed; 0 of none. Sorts.
pub(crate) fn percentile(values: &mut [u64], percent: u32) -> u64 {
    values.sort_unstable();
    let rank = (values.len() * percent as usize).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or(0)
}

/// An instant that is known to lie between two others: a decision, seen from outside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bracket {
    pub(crate) after: u64,
    pub(crate) before: u64,
}

/// The most instants in any span of `span_us`.
///
/// Of an instant known only by its bracket the whole bracket has to lie in the span, so that what a machine
/// delayed on the way is never held against the limiter.
pub(crate) fn busiest(instants: &[Bracket], span_us: u64) -> usize {
    let from = |start: u64| {
        let inside = |at: &&Bracket| at.after >= start && at.before < start + span_us;
        instants.iter().filter(inside).count()
    };
    instants.iter().map(|first| from(first.after)).max().unwrap_or(0)
}

/// The most instants in any span of `span_us` that begins a multiple of `step_us` after the first one.
pub(crate) fn busiest_aligned(instants: &[Bracket], span_us: u64, step_us: u64) -> usize {
    let Some(first) = instants.iter().min_by_key(|at| at.before) else { return 0 };
    let last = instants.iter().map(|at| at.before).max().unwrap_or(0);
    let steps = (last - first.before) / step_us;
    let from = |step: u64| {
        let (begin, end) = (first.before + step * step_us, first.after + step * step_us + span_us);
        // The first one opens its own span, whenever that was.
        let inside = |at: &&Bracket| (at.after >= begin || step == 0) && at.before < end;
        instants.iter().filter(inside).count()
    };
    (0..=steps).map(from).max().unwrap_or(0)
}

/// The most that were under way at once, each from its first instant to its second.
pub(crate) fn most_at_once(spans: &[(u64, u64)]) -> usize {
    let from = |start: u64| spans.iter().filter(|(begun, ended)| *begun <= start && start < *ended).count();
    spans.iter().map(|(begun, _)| from(*begun)).max().unwrap_or(0)
}

/// Jain's index: 1 if all shares are equal, 1/n if one has everything.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// How many instants fall into each bin, from zero to the last one.
pub(crate) fn per_bin(instants: impl IntoIterator<Item = u64>, bin_us: u64) -> Vec<u32> {
    let mut bins = Vec::new();
    for at in instants {
        let bin = (at / bin_us) as usize;
        if bins.len() <= bin {
            bins.resize(bin + 1, 0);
        }
        bins[bin] += 1;
    }
    bins
}

/// How many of the values are at most each bound; the last count is of those above all bounds.
pub(crate) fn histogram(values: &[u64], bounds: &[u64]) -> Vec<u64> {
    let mut counts = vec![0; bounds.len() + 1];
    for value in values {
        counts[bounds.partition_point(|bound| bound < value)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exactly(at: u64) -> Bracket {
        Bracket { after: at, before: at }
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let mut values = (1..=100).rev().collect::<Vec<_>>();
        assert_eq!([50, 95, 99, 100].map(|percent| percentile(&mut values, percent)), [50, 95, 99, 100]);
        assert_eq!((percentile(&mut [7], 1), percentile(&mut [], 50)), (7, 0));
    }

    #[test]
    fn a_span_is_open_at_its_end() {
        let instants = [0, 500, 999, 1_000].map(exactly);
        assert_eq!(busiest(&instants, 1_000), 3);
        assert_eq!(busiest(&[], 1_000), 0);
    }

    #[test]
    fn what_may_lie_outside_of_the_span_is_not_counted_in_it() {
        let instants = [exactly(0), Bracket { after: 990, before: 1_010 }];
        assert_eq!(busiest(&instants, 1_000), 1);
    }

    #[test]
    fn aligned_spans_begin_with_the_first() {
        let instants = [50, 149, 1_051].map(exactly);
        assert_eq!(busiest(&instants, 1_000), 2);
        assert_eq!(busiest_aligned(&instants, 1_000, 100), 2);
        assert_eq!(busiest_aligned(&[exactly(60), exactly(190), exactly(1_100)], 1_000, 100), 2);
        assert_eq!(busiest_aligned(&[], 1_000, 100), 0);
    }

    #[test]
    fn an_end_makes_room_for_the_next_begin() {
        assert_eq!(most_at_once(&[(0, 10), (5, 15), (10, 20)]), 2);
    }

    #[test]
    fn evenness_is_one_over_n_where_one_has_all() {
        assert_eq!(jain(&[3.0, 3.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn bins_and_bounds() {
        assert_eq!(per_bin([0, 9, 10, 35], 10), [2, 1, 0, 1]);
        assert_eq!(histogram(&[0, 1, 2, 11], &[0, 1, 10]), [1, 1, 1, 1]);
    }
}
