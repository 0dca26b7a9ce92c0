//! The one place in the core that reads a clock: microseconds that only grow, on tokio's clock, so that
//! tests can pause it.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

/// Where the count begins: far from zero, so that a window before the first instant is still a number, and
/// half of 2^53, so that sums stay exact.
const BASE_US: u64 = 1 << 50;

#[inline]
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

/// Now.
#[inline]
pub(crate) fn now_us() -> u64 {
    at_us(Instant::now())
}

/// An instant as microseconds. Runtimes with paused clocks run ahead of one another, so it may lie before
/// the origin.
#[inline]
pub(crate) fn at_us(instant: Instant) -> u64 {
    let (origin, instant) = (origin().into_std(), instant.into_std());
    match instant.checked_duration_since(origin) {
        Some(after) => BASE_US + whole_us(after),
        // Rounded down here too, or a span across the origin would count a microsecond less than it is.
        None => BASE_US.saturating_sub(origin.duration_since(instant).as_nanos().div_ceil(1_000) as u64),
    }
}

/// In 64 bits: `as_micros` multiplies in 128.
#[inline]
fn whole_us(span: Duration) -> u64 {
    span.as_secs() * 1_000_000 + u64::from(span.subsec_micros())
}

/// The instant of `us`, for a timer; one far away is as good as never. Not counted from now, whose part of a
/// microsecond would make each timer a little late.
pub(crate) fn instant(us: u64) -> Instant {
    const FAR_US: u64 = 100 * 366 * 86_400_000_000;
    let (after, before) = (us.saturating_sub(BASE_US), BASE_US.saturating_sub(us));
    let origin = origin();
    match origin.checked_sub(Duration::from_micros(before)) {
        Some(instant) => instant + Duration::from_micros(after.min(FAR_US)),
        None => origin,
    }
}

/// A duration in whole microseconds, rounded up and saturating well below overflow.
pub(crate) fn micros(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000).min(u128::from(BASE_US)) as u64
}
