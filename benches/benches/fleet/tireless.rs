//! What one caller that asks without rest is granted by each algorithm, from its definition alone: nothing of the
//! library is used.

/// Calls granted from the first to the instant `lasts_us` after it, inclusive, by a limit in the words of
/// [`crate::fleet::limit`].
pub(crate) fn granted(words: &str, lasts_us: u64) -> u64 {
    let mut parts = words.split(' ');
    let kind = parts.next().expect("a kind");
    let numbers = parts.map(|word| word.parse().expect("a number")).collect::<Vec<u64>>();
    let (n, window) = (numbers[0], numbers[1] * 1_000);
    match kind {
        // A fiftieth at once, then evenly, so that n + 1 span a window.
        "rate" => {
            let burst = n.div_ceil(50);
            burst + lasts_us * (n - burst + 1) / window
        }
        "bucket" => numbers[2] + lasts_us * n / window,
        "leaky" => 1 + lasts_us * n / window,
        // All that a window holds, as soon as it opens; of a segmented one, when the first segment has left.
        "fixed" | "segments" | "log" => n * (lasts_us / window + 1),
        "counter" => counter(n, window, lasts_us),
        other => panic!("not a limit of time: {other}"),
    }
}

/// The last window counts for the part of it that still lies within one window.
fn counter(n: u64, window: u64, lasts_us: u64) -> u64 {
    let (mut before, mut all) = (0, 0);
    for opened in (0..=lasts_us).step_by(window as usize) {
        // The count within this window grows with each unit of the last that has left.
        let passed = window.min(lasts_us - opened + 1) - 1;
        let fits = n - (before * (window - passed)).div_ceil(window).min(n);
        all += fits;
        before = fits;
    }
    all
}
