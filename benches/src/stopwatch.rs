//! Measures several things in turns, so that whatever the machine does meanwhile happens to all of them.

use std::time::Instant;

/// Turns that each case gets.
const TURNS: usize = 41;
/// How long a turn takes, about.
const TURN_NS: f64 = 2_000_000.0;

/// One thing to measure: runs so many times, and says how many nanoseconds that took.
pub struct Case<'a> {
    name: &'static str,
    run: Box<dyn FnMut(u64) -> f64 + 'a>,
}

impl<'a> Case<'a> {
    /// A case that times itself.
    pub fn timed(name: &'static str, run: impl FnMut(u64) -> f64 + 'a) -> Self {
        Self { name, run: Box::new(run) }
    }

    /// A case whose every run is one call of `once`.
    pub fn new(name: &'static str, mut once: impl FnMut() + 'a) -> Self {
        Self::timed(name, move |times| {
            let start = now();
            for _ in 0..times {
                once();
            }
            since_ns(start)
        })
    }
}

/// The instant that a turn began, on the clock of the measuring itself.
#[allow(clippy::disallowed_methods, reason = "measures real time, which no test pauses")]
pub fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since then.
pub fn since_ns(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64
}

/// What was measured: nanoseconds a run, the lower quartile of all turns, for whatever else the machine does
/// only ever adds.
#[derive(Debug, Clone, PartialEq)]
pub struct Times(Vec<(&'static str, f64)>);

impl Times {
    /// Nanoseconds of a case.
    ///
    /// # Panics
    /// If no case has that name.
    pub fn ns(&self, name: &str) -> f64 {
        self.0.iter().find(|(case, _)| *case == name).expect("a case of that name was measured").1
    }

    /// All cases in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.0.iter().copied()
    }
}

/// Runs the cases in turns.
pub fn in_turns(cases: Vec<Case<'_>>) -> Times {
    in_turns_of(cases, TURN_NS)
}

/// The same for what takes so long that a turn of the usual length would hold too few.
pub fn in_long_turns(cases: Vec<Case<'_>>) -> Times {
    in_turns_of(cases, 10.0 * TURN_NS)
}

fn in_turns_of(mut cases: Vec<Case<'_>>, turn_ns: f64) -> Times {
    let times = cases.iter_mut().map(|case| {
        let mut times = 64;
        while (case.run)(times) < turn_ns / 4.0 {
            times *= 2;
        }
        let ns = (case.run)(times) / times as f64;
        ((turn_ns / ns) as u64).max(1)
    });
    let times = times.collect::<Vec<_>>();
    let mut samples = vec![Vec::with_capacity(TURNS); cases.len()];
    for _ in 0..TURNS {
        for ((case, times), samples) in cases.iter_mut().zip(&times).zip(&mut samples) {
            samples.push((case.run)(*times) / *times as f64);
        }
    }
    let quartiles = cases.iter().zip(samples).map(|(case, mut samples)| {
        samples.sort_by(f64::total_cmp);
        (case.name, samples[samples.len() / 4])
    });
    Times(quartiles.collect())
}
