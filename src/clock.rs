//! The one place in the core that reads a clock: microseconds that only grow, on tokio's clock, so that
//! tests can pause it.

use std::cell::Cell;
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
    match instant.into_std().checked_duration_since(origin().into_std()) {
        Some(after) => BASE_US + whole_us(after),
        None => before_origin_us(instant),
    }
}

/// An instant that a caller gave, as microseconds. One is given to many calls, so a thread remembers the last.
#[inline]
pub(crate) fn given_us(instant: Instant) -> u64 {
    thread_local! {
        static LAST: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    }
    LAST.with(|last| match last.get() {
        Some((same, us)) if same == instant => us,
        _ => {
            let us = at_us(instant);
            last.set(Some((instant, us)));
            us
        }
    })
}

#[cold]
fn before_origin_us(instant: Instant) -> u64 {
    // Rounded down here too, or a span across the origin would count a microsecond less than it is.
    BASE_US.saturating_sub(micros(origin().duration_since(instant)))
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
