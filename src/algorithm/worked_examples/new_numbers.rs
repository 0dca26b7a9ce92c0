//! Rule 8: other numbers, and another algorithm, under the same name keep what was used.

use super::*;

#[test]
pub(super) fn a_larger_burst_is_what_it_was_and_the_difference() {
    play(
        &[Limit::token_bucket(ten_a_second(), 5)],
        &[
            (0.0, Ask(3), Granted(2)),
            (0.0, Numbers(Limit::token_bucket(ten_a_second(), 20)), Left(17)),
            (0.0, Ask(17), Granted(0)),
            // Back again: of what was charged under the larger burst, this one waits for five at most.
            (0.0, Numbers(Limit::token_bucket(ten_a_second(), 5)), Left(0)),
            (0.0, Ask(1), Until(100.0, 0)),
            (100.0, Ask(1), Granted(0)),
            (100.0, Ask(5), Until(600.0, 0)),
            // And the larger one finds it all: 20, one repaid, one charged.
            (100.0, Numbers(Limit::token_bucket(ten_a_second(), 20)), Left(0)),
            (200.0, Ask(2), Until(300.0, 1)),
            (300.0, Ask(2), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn a_slower_rate_takes_the_units_over_and_repays_them_in_its_own_time() {
    let slow = Rate::new(3, Duration::from_secs(7));
    play(
        &[Limit::token_bucket(ten_a_second(), 5)],
        &[
            (0.0, Ask(5), Granted(0)),
            (0.0, Numbers(Limit::token_bucket(slow, 5)), Left(0)),
            (0.0, Ask(1), Until(2_333.334, 0)),
            (0.0, Ask(5), Until(11_666.667, 0)),
            (2_333.334, Ask(1), Granted(0)),
            (2_333.334, Numbers(Limit::token_bucket(ten_a_second(), 5)), Left(0)),
            (2_433.334, Ask(1), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn much_smaller_numbers_lock_nobody_out() {
    play(
        &[Limit::token_bucket(Rate::per_second(1_000), 5_000)],
        &[
            (0.0, Ask(5_000), Granted(0)),
            (0.0, Numbers(Limit::token_bucket(Rate::per_minute(1), 1)), Left(0)),
            // A minute, not three and a half days.
            (0.0, Ask(1), Until(60_000.0, 0)),
            (60_000.0, Ask(1), Granted(0)),
            (60_000.0, Ask(1), Until(120_000.0, 0)),
        ],
    );
}

#[test]
pub(super) fn another_algorithm_begins_with_the_units_in_use() {
    let rate = ten_a_second();
    play(
        &[Limit::token_bucket(rate, 5)],
        &[
            (0.0, Ask(3), Granted(2)),
            (100.0, Numbers(Limit::fixed_window(rate)), Left(8)),
            (100.0, Ask(8), Granted(0)),
            (100.0, Ask(1), Until(1_100.0, 0)),
            (600.0, Numbers(Limit::sliding_log(rate)), Left(0)),
            (600.0, Ask(1), Until(1_600.0, 0)),
            (1_600.0, Ask(4), Granted(6)),
            (1_700.0, Numbers(Limit::sliding_counter(rate)), Left(6)),
            (1_700.0, Ask(6), Granted(0)),
            (1_700.0, Numbers(Limit::sliding_window(rate, 5)), Left(0)),
            (1_700.0, Ask(1), Until(2_700.0, 0)),
            (2_700.0, Ask(2), Granted(8)),
            (2_700.0, Numbers(Limit::token_bucket(rate, 5)), Left(3)),
            (2_700.0, Ask(4), Until(2_800.0, 3)),
            (2_800.0, Numbers(Limit::leaky_bucket(rate, 10)), Left(10)),
            (2_800.0, Ask(1), Until(2_900.0, 10)),
            (2_900.0, Numbers(Limit::rate(rate)), Left(1)),
            (2_900.0, Ask(1), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn a_window_of_another_length_keeps_its_count() {
    play(
        &[Limit::fixed_window(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            (500.0, Numbers(Limit::fixed_window(Rate::per_minute(10))), Left(4)),
            (500.0, Ask(5), Until(60_500.0, 4)),
            (500.0, Numbers(Limit::fixed_window(Rate::per_minute(5))), Left(0)),
            (500.0, Ask(1), Until(60_500.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_log_with_a_longer_window_still_counts_what_it_remembers() {
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            (500.0, Numbers(Limit::sliding_log(Rate::per_minute(10))), Left(4)),
            (500.0, Ask(5), Until(60_000.0, 4)),
            (500.0, Numbers(Limit::sliding_log(Rate::per_second(20))), Left(14)),
        ],
    );
}

#[test]
fn seats_are_no_usage_and_usage_takes_no_seats() {
    let (rate, seats) = (rule(&Limit::fixed_window(ten_a_second())), rule(&Limit::concurrency(4)));
    let (mut used, mut taken) = (rate.fresh(), seats.fresh());
    rate.commit(&mut used, START, 10);
    seats.commit(&mut taken, START, 4);
    let adopted = seats.adopt(&rate, used, START);
    assert_eq!(seats.earliest(&adopted, START, 4), START, "nobody would ever give those seats back");
    let adopted = rate.adopt(&seats, taken.clone(), START);
    assert_eq!(rate.earliest(&adopted, START, 10), START);
    let fewer = rule(&Limit::concurrency(2));
    let mut kept = fewer.adopt(&seats, taken, START);
    assert_eq!(fewer.earliest(&kept, START, 1), crate::algorithm::NEVER);
    fewer.take_back(&mut kept, START, 3, None);
    assert_eq!(fewer.earliest(&kept, START, 1), START);
}
