//! The table: what was measured, beside what, and what is promised of it.

/// One line.
pub(crate) struct Line {
    what: String,
    ours: String,
    beside: String,
    ratio: Option<f64>,
    /// What is promised, and whether it was kept.
    bound: Option<(String, bool)>,
}

/// A figure and its unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure(pub(crate) f64, pub(crate) &'static str);

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(value, unit) = self;
        if *value < 20.0 && value.fract() != 0.0 {
            return write!(f, "{value:.2} {unit}");
        }
        match value.round() as u64 {
            whole @ 1_000.. => write!(f, "{},{:03} {unit}", whole / 1_000, whole % 1_000),
            whole => write!(f, "{whole} {unit}"),
        }
    }
}

impl Line {
    pub(crate) fn new(what: impl Into<String>, ours: impl ToString) -> Self {
        Self { what: what.into(), ours: ours.to_string(), beside: String::new(), ratio: None, bound: None }
    }

    pub(crate) fn beside(mut self, what: &str, theirs: impl ToString, ratio: f64) -> Self {
        self.beside = format!("{what} {}", theirs.to_string()).trim().to_owned();
        self.ratio = Some(ratio);
        self
    }

    /// At most so many times what stands beside it.
    pub(crate) fn at_most(self, times: f64) -> Self {
        let met = self.ratio.is_some_and(|ratio| ratio <= times);
        self.bound(format!("{times:.2}"), met)
    }

    pub(crate) fn bound(mut self, bound: impl Into<String>, met: bool) -> Self {
        self.bound = Some((bound.into(), met));
        self
    }
}

/// Prints the lines, and which promises were not kept.
pub(crate) fn print(lines: &[Line]) {
    println!("| what | forbear | beside | ratio | at most | |");
    println!("|---|---|---|---|---|---|");
    for Line { what, ours, beside, ratio, bound } in lines {
        let ratio = ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let (bound, met) = match bound {
            Some((bound, true)) => (&**bound, "met"),
            Some((bound, false)) => (&**bound, "not met"),
            None => ("", ""),
        };
        println!("| {what} | {ours} | {beside} | {ratio} | {bound} | {met} |");
    }
}
