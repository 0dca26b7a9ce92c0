//! Stories of a key's answers, with what each means: in one process, then as a worker of a fleet hears them, then
//! eight such workers beside a service that refuses some calls or all.

use std::time::SystemTime;

use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::Instant;

use super::*;
use crate::clock::at_us;

/// Answers of one key, with stamps in milliseconds from the first.
struct Story {
    answers: Answers,
    start: Instant,
    row_us: u64,
}

impl Story {
    fn new() -> Self {
        Self { answers: Answers::default(), start: Instant::now(), row_us: 0 }
    }

    #[cfg(feature = "redis")]
    fn of_a_fleet() -> Self {
        Self { row_us: ROW_US, ..Self::new() }
    }

    fn us(&self, at: u64) -> u64 {
        at_us(self.start + Duration::from_millis(at))
    }

    fn answer(&self, status: u16, retry_after: Option<&'static str>, sent: u64, received: u64) -> Verdict {
        let mut headers = HeaderMap::new();
        if let Some(wait) = retry_after {
            headers.insert("retry-after", HeaderValue::from_static(wait));
        }
        let status = StatusCode::from_u16(status).expect("a status");
        let mut signals = Signals::read(status, &headers, SystemTime::UNIX_EPOCH);
        signals.sent = Some(self.start + Duration::from_millis(sent));
        signals.received = Some(self.start + Duration::from_millis(received));
        match self.answers.judge("k", &signals, self.row_us, self.us(received)) {
            Verdict::Drain { sent: told, wait_us } => {
                assert_eq!(told, self.us(sent));
                Verdict::Drain { sent: 0, wait_us }
            }
            verdict => verdict,
        }
    }

    /// Another worker's 429.
    #[cfg(feature = "redis")]
    fn elsewhere(&self, sent: u64, heard: u64) {
        self.answers.throttled_elsewhere("k", self.us(sent), self.us(heard));
    }

    fn pause(&self, until: u64) -> Verdict {
        Verdict::Pause { until: self.us(until) }
    }
}

/// A soft one that asks for so long a wait, whenever it was sent.
fn drain(seconds: u64) -> Verdict {
    Verdict::Drain { sent: 0, wait_us: seconds * 1_000_000 }
}

#[test]
fn a_lone_429_is_soft() {
    let story = Story::new();
    assert_eq!(story.answer(429, None, 0, 10), drain(0));
    assert_eq!(story.answer(429, Some("1"), 5, 11), drain(1), "sent before the first was known");
    assert_eq!(story.answer(429, Some("1"), 10, 12), drain(1), "sent at that instant");
}

#[test]
fn one_that_asks_for_more_than_a_second_is_hard() {
    let story = Story::new();
    assert_eq!(story.answer(429, Some("2"), 0, 10), story.pause(2_010));
}

#[test]
fn one_sent_after_the_last_was_known_is_hard() {
    let story = Story::new();
    assert_eq!(story.answer(429, None, 0, 10), drain(0));
    assert_eq!(story.answer(429, Some("1"), 11, 20), story.pause(1_020));
    assert_eq!(story.answer(429, None, 21, 30), story.pause(30 + 1_000), "the second episode");
}

#[test]
fn sends_that_began_before_a_pause_belong_to_its_episode() {
    let story = Story::new();
    story.answer(429, None, 0, 10);
    assert_eq!(story.answer(429, None, 11, 20), story.pause(520));
    for received in 21..30 {
        let verdict = story.answer(429, None, 12, received);
        assert_eq!(verdict, drain(0), "sent before the newest was known, so soft");
    }
    assert_eq!(story.answer(429, Some("3"), 15, 31), story.pause(3_031));
    assert_eq!(story.answer(429, None, 600, 610), story.pause(1_610), "doubled once, not ten times");
}

#[test]
fn doubling_stops_at_half_a_minute() {
    let story = Story::new();
    story.answer(429, None, 0, 10);
    let mut at = 10;
    for wait in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000] {
        at += wait + 100;
        assert_eq!(story.answer(429, None, at - 1, at), story.pause(at + wait));
    }
}

#[test]
fn a_success_sent_later_forgets_all() {
    let story = Story::new();
    story.answer(429, None, 0, 10);
    assert_eq!(story.answer(429, None, 11, 20), story.pause(520));
    let sent = story.us(21);
    assert_eq!(story.answer(200, None, 21, 30), Verdict::Well { sent });
    assert_eq!(story.answer(200, None, 31, 40), Verdict::Nothing);
    assert_eq!(story.answer(429, None, 41, 50), drain(0));
    assert_eq!(story.answer(429, None, 51, 60), story.pause(560));
}

#[test]
fn a_success_sent_before_ends_the_row_and_forgets_nothing() {
    let story = Story::new();
    story.answer(429, None, 0, 10);
    assert_eq!(story.answer(429, None, 11, 20), story.pause(520));
    assert_eq!(story.answer(200, None, 5, 21), Verdict::Nothing);
    assert_eq!(story.answer(429, None, 600, 610), drain(0), "the answer before it was no 429");
    assert_eq!(story.answer(429, None, 611, 620), story.pause(1_620), "still the second episode");
}

#[test]
fn a_fault_ends_the_row_too() {
    let story = Story::new();
    story.answer(429, None, 0, 10);
    assert_eq!(story.answer(500, None, 11, 20), Verdict::Nothing);
    assert_eq!(story.answer(429, None, 21, 30), drain(0));
}

#[cfg(feature = "redis")]
#[test]
fn in_a_fleet_a_row_must_have_lasted() {
    let story = Story::of_a_fleet();
    assert_eq!(story.answer(429, Some("1"), 0, 10), drain(1));
    assert_eq!(story.answer(429, Some("1"), 9, 20), drain(1), "sent before that was known");
    assert_eq!(
        story.answer(429, Some("1"), 900, 910),
        drain(1),
        "until then nothing went, so nothing was shown"
    );
    assert_eq!(story.answer(429, Some("1"), 999, 1_005), drain(1), "not quite a tenth of a second");
    assert_eq!(story.answer(429, Some("1"), 1_000, 1_010), story.pause(2_010));
    assert_eq!(story.answer(429, Some("1"), 2_011, 2_015), story.pause(3_015), "the row goes on");
    assert_eq!(story.answer(429, Some("2"), 0, 3_000), story.pause(5_000), "a long wait is hard at once");
}

#[cfg(feature = "redis")]
#[test]
fn in_a_fleet_a_success_that_ends_the_row_is_told_once_however_early_it_was_sent() {
    let story = Story::of_a_fleet();
    story.answer(429, None, 0, 10);
    let sent = story.us(5);
    assert_eq!(story.answer(200, None, 5, 30), Verdict::Well { sent });
    assert_eq!(story.answer(200, None, 6, 31), Verdict::Nothing, "there is no row");
}

#[cfg(feature = "redis")]
#[test]
fn in_a_fleet_news_of_a_success_may_be_older_than_it_looks() {
    let story = Story::of_a_fleet();
    story.answer(429, None, 0, 10);
    story.answer(429, None, 10, 11);
    assert_eq!(story.answer(429, None, 110, 120), story.pause(620));
    story.answers.well_elsewhere("k", story.us(220));
    assert_eq!(story.answer(429, None, 700, 710), drain(0), "it ends the row");
    assert_eq!(story.answer(429, None, 710, 711), drain(0));
    assert_eq!(story.answer(429, None, 810, 820), story.pause(1_820), "still the second episode");
    story.answers.well_elsewhere("k", story.us(921));
    assert!(story.answers.keys.lock().is_empty());
}

#[cfg(feature = "redis")]
#[test]
fn in_a_fleet_a_429_of_another_worker_begins_the_row() {
    let story = Story::of_a_fleet();
    story.elsewhere(0, 10);
    assert_eq!(story.answer(429, None, 5, 12), drain(0), "sent before that was known");
    assert_eq!(story.answer(429, None, 110, 120), drain(0));
    assert_eq!(story.answer(429, None, 210, 220), story.pause(720));
}

#[cfg(feature = "redis")]
#[test]
fn in_a_fleet_the_row_goes_on_elsewhere() {
    let story = Story::of_a_fleet();
    story.elsewhere(0, 10);
    story.elsewhere(109, 115);
    assert_eq!(story.answer(429, None, 209, 219), drain(0), "news may be older than it looks");
    let story = Story::of_a_fleet();
    story.elsewhere(0, 10);
    story.elsewhere(110, 115);
    assert_eq!(story.answer(429, None, 210, 220), story.pause(720));
}

#[cfg(feature = "redis")]
#[test]
fn in_a_fleet_a_success_of_another_worker_ends_the_row() {
    let story = Story::of_a_fleet();
    assert_eq!(story.answer(429, None, 0, 10), drain(0));
    story.answers.well_elsewhere("k", story.us(60));
    assert_eq!(story.answer(429, None, 120, 130), drain(0));
    assert_eq!(story.answer(429, None, 130, 131), drain(0));
    assert_eq!(story.answer(429, None, 230, 240), story.pause(740), "all refused for a tenth of a second");
    story.answers.well_elsewhere("k", story.us(235));
    assert_eq!(story.answer(429, None, 800, 810), drain(0));
    assert_eq!(story.answer(429, None, 810, 811), drain(0));
    assert_eq!(
        story.answer(429, None, 911, 920),
        story.pause(1_920),
        "it was sent before: the second episode"
    );
    story.answers.well_elsewhere("other", story.us(2_000));
    story.answers.well_elsewhere("k", story.us(2_000));
    assert!(story.answers.keys.lock().is_empty());
}

/// Eight workers, of whom a random one sends every `gap` ms, answered with this after so many ms; when the first
/// call was sent whose 429 was hard, if there was one.
#[cfg(feature = "redis")]
fn of_eight(seed: u64, gap: u64, answer: impl Fn(u64) -> (u16, u64)) -> Option<u64> {
    let workers = [(); 8].map(|()| Story::of_a_fleet());
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut calls = (0..2_000)
        .map(|call| {
            let (status, trip) = answer(call);
            (gap * call + trip, gap * call, status, rng.usize(0..8))
        })
        .collect::<Vec<_>>();
    calls.sort_unstable();
    for (received, sent, status, own) in calls {
        let others = workers.iter().enumerate().filter(|(i, _)| *i != own).map(|(_, other)| other);
        match workers[own].answer(status, Some("1"), sent, received) {
            Verdict::Pause { .. } => return Some(sent),
            Verdict::Drain { .. } => {
                others.for_each(|other| other.elsewhere(sent + 1, received + 1));
            }
            Verdict::Well { .. } => {
                others.for_each(|other| other.answers.well_elsewhere("k", other.us(sent)));
            }
            Verdict::Nothing => {}
        }
    }
    None
}

#[cfg(feature = "redis")]
#[test]
fn a_service_that_refuses_a_part_never_holds_a_fleet_and_one_that_refuses_all_does() {
    let unless = |well| if well { 200 } else { 429 };
    for (seed, trip) in (0..20).flat_map(|seed| [2, 12, 50].map(|trip| (seed, trip))) {
        assert_eq!(of_eight(seed, 5, |call| (unless(call % 2 == 0), trip)), None);
        assert_eq!(of_eight(seed, 5, |call| (unless(call % 10 == 0), trip)), None);
        let hard = of_eight(seed, 5, |_| (429, trip)).expect("all are refused");
        // Until one of them has sent again, and once more a tenth of a second later.
        let first = trip + 100;
        assert!((first..=first + 80).contains(&hard), "sent at {hard} ms, with trips of {trip} ms");
    }
}

#[cfg(feature = "redis")]
#[test]
fn successes_that_take_longer_than_429s_end_the_row_for_all_of_a_fleet() {
    for seed in 0..20 {
        assert_eq!(of_eight(seed, 10, |call| if call % 2 == 0 { (200, 50) } else { (429, 2) }), None);
    }
}

#[test]
fn however_long_it_asks_nothing_overflows() {
    let story = Story::new();
    for wait in ["18446744073709551615", "99999999999999999999999999"] {
        let Verdict::Pause { until } = story.answer(429, Some(wait), 0, 10) else { panic!("{wait}") };
        assert!(until > story.us(0) + 365 * 86_400_000_000);
    }
}

#[test]
fn keys_are_forgotten_in_time() {
    let story = Story::new();
    for i in 0..10_000 {
        let signals = Signals::read(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new(), SystemTime::UNIX_EPOCH);
        story.answers.judge(&i.to_string(), &signals, 0, crate::clock::now_us() + i * 60_000_000);
    }
    assert!(story.answers.keys.lock().len() < 1_000);
}

#[cfg(feature = "redis")]
#[test]
fn in_a_fleet_a_row_that_another_worker_has_ended_is_no_news() {
    let story = Story::of_a_fleet();
    story.elsewhere(0, 10);
    story.answers.well_elsewhere("k", story.us(15));
    assert_eq!(story.answer(200, None, 200, 210), Verdict::Nothing, "or each of a fleet would say it");
    assert_eq!(story.answer(429, None, 220, 230), drain(0));
    assert_eq!(story.answer(200, None, 240, 250), Verdict::Well { sent: story.us(240) });
}
