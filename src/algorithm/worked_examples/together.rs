//! Several limits that hold together, decided at one instant.

use super::*;

#[test]
pub(super) fn a_call_waits_for_the_limit_that_opens_last() {
    play(
        &[Limit::token_bucket(ten_a_second(), 5), Limit::fixed_window(Rate::per_minute(8))],
        &[
            (0.0, Ask(5), Granted(0)),
            (0.0, Ask(1), Until(100.0, 0)),
            // The refusal took nothing of the window.
            (300.0, Ask(3), Granted(0)),
            (300.0, Ask(1), Until(60_000.0, 0)),
            (60_000.0, Ask(5), Granted(0)),
            (60_000.0, Book(1), Until(60_100.0, 0)),
            (60_000.0, TakeBack, Left(0)),
            (60_300.0, Ask(3), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn the_quiet_band_of_a_window_moves_a_call_that_another_limit_held_into_it() {
    let spacing = Rate::new(1, ms(950));
    play(
        &[Limit::token_bucket(spacing, 1), Limit::fixed_window(ten_a_second()).jitter_margin(ms(100))],
        &[
            (0.0, Ask(1), Granted(0)),
            // The bucket says 950; there the window is about to end; it opens again at 1100.
            (0.0, Ask(1), Until(1_100.0, 0)),
            (950.0, Ask(1), Until(1_100.0, 1)),
            (1_100.0, Ask(1), Granted(0)),
            // 2050 lies in the next quiet band, 2000 to 2200.
            (1_100.0, Ask(1), Until(2_200.0, 0)),
            // 4050 opens a window of its own after a silence.
            (3_100.0, Ask(1), Granted(0)),
            (3_100.0, Ask(1), Until(4_200.0, 0)),
        ],
    );
}

#[test]
pub(super) fn two_quiet_bands_are_waited_out_one_after_the_other() {
    let window = |n, period| Limit::fixed_window(Rate::new(n, ms(period))).jitter_margin(ms(100));
    play(
        &[window(1, 1_000), window(9, 1_200)],
        &[
            (0.0, Ask(1), Granted(0)),
            // Open again at 1100, when the other is about to close; at 1300 both are.
            (0.0, Ask(1), Until(1_300.0, 0)),
            (1_300.0, Ask(1), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn a_bucket_beside_a_leaky_one_is_booked_as_far_ahead_as_that_holds() {
    let leaky = Limit::leaky_bucket(Rate::per_second(1), 60);
    play(
        &[Limit::token_bucket(Rate::per_minute(30), 2), leaky],
        &[
            (0.0, Book(1), Granted(1)),
            (0.0, Book(1), Until(1_000.0, 0)),
            (0.0, Book(1), Until(2_000.0, 0)),
            (0.0, Book(1), Until(4_000.0, 0)),
            (0.0, Book(1), Until(6_000.0, 0)),
            // Not taken for a clock that was set back: the bucket still knows of all five.
            (0.0, Book(1), Until(8_000.0, 0)),
            (0.0, TakeBack, Left(0)),
            (0.0, Book(2), Until(10_000.0, 0)),
            (1_000.0, Ask(1), Until(12_000.0, 0)),
        ],
    );
}

#[test]
fn requests_and_tokens_are_charged_in_one_step() {
    let requests = rule(&Limit::fixed_window(Rate::per_minute(3)));
    let tokens = rule(&Limit::token_bucket(Rate::per_second(100), 1_000));
    let (mut calls, mut debt) = (requests.fresh(), tokens.fresh());
    let mut answers = Vec::new();
    for (ms, cost) in [(0, 800), (0, 500), (0, 0), (3_000, 500), (3_000, 0), (60_000, 1_000)] {
        let now = START + ms * 1_000;
        let parts = [(&requests, &calls, 1), (&tokens, &debt, cost)];
        let joint = joint_earliest(parts.into_iter(), now);
        if joint == Joint::Agreed(now) {
            requests.commit(&mut calls, now, 1);
            if cost > 0 {
                tokens.commit(&mut debt, now, cost);
            }
        }
        let Joint::Agreed(at) = joint else { panic!("{joint:?}") };
        answers.push((at - START) / 1_000);
    }
    // The second waits for tokens and takes no request; one without tokens passes it by.
    assert_eq!(answers, [0, 3_000, 0, 3_000, 60_000, 60_000]);
}
