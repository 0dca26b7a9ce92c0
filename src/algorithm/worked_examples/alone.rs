//! Each limit by itself, from its first call to a clock that is set back.

use super::*;

#[test]
pub(super) fn a_token_bucket_repays_at_its_rate_and_never_earns_while_full() {
    play(
        &[Limit::token_bucket(ten_a_second(), 5)],
        &[
            (0.0, Ask(1), Granted(4)),
            (0.0, Ask(5), Until(100.0, 4)),
            (0.0, Ask(4), Granted(0)),
            (0.0, Ask(1), Until(100.0, 0)),
            (99.999, Ask(1), Until(100.0, 0)),
            (100.0, Ask(1), Granted(0)),
            (250.0, Ask(2), Until(300.0, 1)),
            (300.0, Ask(2), Granted(0)),
            // A long silence fills it once, not twice.
            (60000.0, Ask(5), Granted(0)),
            (60000.0, Ask(1), Until(60100.0, 0)),
            // Taken for 1 unit, used 4: three more are owed.
            (60100.0, Ask(1), Granted(0)),
            (60100.0, Settle(4), Left(0)),
            (60100.0, Ask(1), Until(60500.0, 0)),
            // Taken for 4 units, used 1: three come back.
            (61000.0, Ask(4), Granted(1)),
            (61000.0, Settle(1), Left(4)),
            // The same when time has repaid it all: nothing comes back twice.
            (62000.0, Ask(4), Granted(1)),
            (62600.0, Settle(1), Left(5)),
            (62600.0, Ask(5), Granted(0)),
            (62600.0, Book(3), Until(62900.0, 0)),
            (62600.0, TakeBack, Left(0)),
            (62700.0, Ask(1), Granted(0)),
            (70000.0, Drain, Left(0)),
            (70000.0, Ask(1), Until(70100.0, 0)),
            (70500.0, Ask(5), Granted(0)),
            // The clock is set back by ten seconds, and later by less than a booking reaches.
            (60000.0, Ask(1), Until(60100.0, 0)),
            (60100.0, Ask(1), Granted(0)),
            (59700.0, Ask(1), Until(60200.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_token_bucket_keeps_what_the_rate_yields_in_the_margin() {
    play(
        &[Limit::token_bucket(ten_a_second(), 5).jitter_margin(ms(100))],
        &[
            (0.0, Ask(4), Granted(1)),
            (0.0, Ask(1), Until(100.0, 1)),
            // The margin never changes what can fit.
            (0.0, Ask(5), Until(400.0, 1)),
            (400.0, Ask(5), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn a_burst_of_one_is_spaced_wider_by_at_most_a_tenth() {
    play(
        &[Limit::token_bucket(ten_a_second(), 1).jitter_margin(ms(50))],
        &[(0.0, Ask(1), Granted(0)), (0.0, Ask(1), Until(110.0, 0)), (110.0, Ask(1), Granted(0))],
    );
}

#[test]
pub(super) fn the_plain_rate_is_paced_and_takes_a_dear_call_when_nothing_is_owed() {
    play(
        &[Limit::rate(Rate::per_second(51))],
        &[
            // A fiftieth of 51, rounded up, at once; 50 more in a second.
            (0.0, Ask(1), Granted(1)),
            (0.0, Ask(1), Granted(0)),
            (0.0, Ask(1), Until(20.0, 0)),
            (19.999, Ask(1), Until(20.0, 0)),
            (20.0, Ask(1), Granted(0)),
            // Above the burst, up to the rate.
            (20.0, Ask(51), Until(60.0, 0)),
            (200.0, Ask(51), Granted(0)),
            (200.0, Ask(1), Until(1200.0, 0)),
            (1200.0, Ask(1), Granted(0)),
            (1240.0, Ask(10), Granted(0)),
            (1240.0, Ask(1), Until(1420.0, 0)),
            (5000.0, Drain, Left(0)),
            (5000.0, Ask(1), Until(5020.0, 0)),
            (5100.0, Ask(2), Granted(0)),
            (5200.0, Ask(1), Granted(1)),
            (5200.0, Settle(3), Left(0)),
            (5200.0, Ask(1), Until(5240.0, 0)),
            (6000.0, Ask(2), Granted(0)),
            (6000.0, Book(1), Until(6020.0, 0)),
            (6000.0, TakeBack, Left(0)),
            (6020.0, Ask(1), Granted(0)),
            (-3600000.0, Ask(1), Until(-3599980.0, 0)),
        ],
    );
}

#[test]
pub(super) fn the_plain_rate_spreads_its_margin_over_the_period() {
    play(
        &[Limit::rate(Rate::per_second(51)).jitter_margin(ms(100))],
        &[(0.0, Ask(2), Granted(0)), (0.0, Ask(1), Until(22.0, 0)), (22.0, Ask(1), Granted(0))],
    );
}

#[test]
pub(super) fn a_leaky_bucket_books_one_slot_after_the_other() {
    play(
        &[Limit::leaky_bucket(ten_a_second(), 10)],
        &[
            (0.0, Ask(1), Granted(10)),
            (0.0, Book(1), Until(100.0, 9)),
            // A dear call goes when nothing is owed, and the next one when it is repaid.
            (0.0, Book(3), Until(200.0, 6)),
            (0.0, Book(1), Until(500.0, 5)),
            (0.0, Ask(1), Until(600.0, 5)),
            (0.0, Book(5), Until(600.0, 0)),
            (0.0, Ask(1), Until(1100.0, 0)),
            (0.0, TakeBack, Left(5)),
            (600.0, Ask(1), Granted(10)),
            (2000.0, Drain, Left(10)),
            (2000.0, Ask(1), Until(2100.0, 10)),
            (2100.0, Ask(1), Granted(10)),
            (2100.0, Settle(3), Left(8)),
            (2100.0, Ask(1), Until(2400.0, 8)),
            // Its queue reaches further than a booking elsewhere.
            (200.0, Ask(1), Until(2400.0, 0)),
            (-10000.0, Ask(1), Until(-9900.0, 10)),
        ],
    );
}

#[test]
pub(super) fn a_fixed_window_opens_with_the_first_call() {
    play(
        &[Limit::fixed_window(ten_a_second())],
        &[
            (0.0, Ask(1), Granted(9)),
            (900.0, Ask(9), Granted(0)),
            (900.0, Ask(1), Until(1000.0, 0)),
            (999.999, Ask(1), Until(1000.0, 0)),
            (1000.0, Ask(10), Granted(0)),
            (1000.0, Ask(1), Until(2000.0, 0)),
            (2500.0, Ask(1), Granted(9)),
            (3400.0, Ask(10), Until(3500.0, 9)),
            (3400.0, Settle(4), Left(6)),
            (3400.0, Settle(2), Left(8)),
            // A correction reaches no later window.
            (3500.0, Settle(9), Left(10)),
            (3500.0, Ask(10), Granted(0)),
            // What is left is told of the window that was booked.
            (3600.0, Book(2), Until(4500.0, 8)),
            (3600.0, TakeBack, Left(0)),
            (3600.0, Ask(1), Until(4500.0, 0)),
            (5000.0, Drain, Left(0)),
            (5000.0, Ask(1), Until(6000.0, 0)),
            (6000.0, Ask(10), Granted(0)),
            (5500.0, Ask(1), Until(7000.0, 0)),
            (-60000.0, Ask(1), Until(-59000.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_fixed_window_is_quiet_around_its_end_with_a_margin() {
    play(
        &[Limit::fixed_window(ten_a_second()).jitter_margin(ms(100))],
        &[
            (0.0, Ask(1), Granted(9)),
            (899.999, Ask(1), Granted(8)),
            (900.0, Ask(1), Until(1100.0, 8)),
            (1000.0, Ask(1), Until(1100.0, 10)),
            (1100.0, Ask(10), Granted(0)),
            (1100.0, Ask(1), Until(2200.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_fixed_window_opens_again_as_soon_as_the_services_own_must_have() {
    play(
        &[Limit::fixed_window(ten_a_second()).jitter_margin(ms(100))],
        &[
            (0.0, Ask(10), Granted(0)),
            (0.0, Ask(1), Until(1100.0, 0)),
            // It has opened by now.
            (30.0, Answered, Left(0)),
            (30.0, Ask(1), Until(1030.0, 0)),
            // It has not opened later for that.
            (60.0, Answered, Left(0)),
            (60.0, Ask(1), Until(1030.0, 0)),
            (1030.0, Ask(10), Granted(0)),
            // Later than the margin it says nothing.
            (1140.0, Answered, Left(0)),
            (1140.0, Ask(1), Until(2130.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_fixed_window_that_was_refused_opens_again_when_it_would_have() {
    play(
        &[Limit::fixed_window(ten_a_second())],
        &[
            (0.0, Ask(4), Granted(6)),
            (100.0, Refused(1_000), Left(0)),
            (100.0, Ask(1), Until(1000.0, 0)),
            (1000.0, Ask(4), Granted(6)),
            // Nothing is known of the window of a service that refuses what none of ours opened.
            (2500.0, Refused(1_000), Left(0)),
            (2500.0, Ask(1), Until(3500.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_window_forgets_a_segment_at_a_time() {
    play(
        &[Limit::sliding_window(ten_a_second(), 5)],
        &[
            (0.0, Ask(4), Granted(6)),
            (250.0, Ask(3), Granted(3)),
            (950.0, Ask(3), Granted(0)),
            (950.0, Ask(1), Until(1000.0, 0)),
            (950.0, Ask(5), Until(1200.0, 0)),
            (1000.0, Ask(4), Granted(0)),
            (1000.0, Settle(2), Left(2)),
            (1000.0, Settle(4), Left(0)),
            (1199.999, Ask(1), Until(1200.0, 0)),
            (1200.0, Ask(3), Granted(0)),
            (1200.0, Book(1), Until(1800.0, 2)),
            (1200.0, TakeBack, Left(0)),
            (3000.0, Drain, Left(0)),
            (3000.0, Ask(1), Until(3200.0, 0)),
            (3200.0, Ask(2), Granted(0)),
            (4000.0, Ask(8), Granted(0)),
            (10000.0, Ask(10), Granted(0)),
            (-50000.0, Ask(1), Until(-49800.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_window_looks_at_one_segment_more_with_a_margin() {
    play(
        &[Limit::sliding_window(ten_a_second(), 5).jitter_margin(ms(20))],
        &[(0.0, Ask(10), Granted(0)), (0.0, Ask(1), Until(1200.0, 0)), (1200.0, Ask(10), Granted(0))],
    );
}

#[test]
pub(super) fn a_sliding_counter_weighs_the_last_window() {
    play(
        &[Limit::sliding_counter(ten_a_second())],
        &[
            (0.0, Ask(4), Granted(6)),
            (900.0, Ask(6), Granted(0)),
            (900.0, Ask(1), Until(1100.0, 0)),
            (1050.0, Ask(1), Until(1100.0, 0)),
            (1100.0, Ask(1), Granted(0)),
            (1500.0, Ask(4), Granted(0)),
            (1500.0, Settle(1), Left(3)),
            (1500.0, Settle(4), Left(0)),
            (1500.0, Ask(6), Until(2200.0, 0)),
            (2200.0, Ask(6), Granted(0)),
            (4500.0, Ask(10), Granted(0)),
            (4700.0, Book(1), Until(5600.0, 0)),
            (4700.0, TakeBack, Left(0)),
            (4700.0, Ask(1), Until(5600.0, 0)),
            (8000.0, Drain, Left(0)),
            (8000.0, Ask(1), Until(8100.0, 0)),
            (8500.0, Ask(5), Granted(0)),
            // A window in which nothing was counted is none: the next call opens one.
            (20000.0, Drain, Left(0)),
            (21500.0, Ask(10), Granted(0)),
            (21600.0, Ask(1), Until(22600.0, 0)),
            (-1000.0, Ask(1), Until(-900.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_counter_keeps_its_share_in_the_margin() {
    play(
        &[Limit::sliding_counter(ten_a_second()).jitter_margin(ms(100))],
        &[
            (0.0, Ask(9), Granted(1)),
            (0.0, Ask(1), Until(1111.112, 1)),
            (0.0, Ask(10), Until(2000.0, 1)),
            (2000.0, Ask(10), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_counter_stays_exact_after_a_correction_far_above_it() {
    play(
        &[Limit::sliding_counter(Rate::per_minute(10))],
        &[
            (0.0, Ask(1), Granted(9)),
            (0.0, Settle(u64::MAX), Left(0)),
            (60_001.0, Drain, Left(0)),
            (60_001.0, Ask(1), Until(119_999.997, 0)),
            // Next to nothing of the last window weighs.
            (119_999.999, Drain, Left(0)),
            (120_000.0, Ask(1), Granted(1)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_log_remembers_each_call() {
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(1), Granted(9)),
            (900.0, Ask(9), Granted(0)),
            (900.0, Ask(1), Until(1000.0, 0)),
            (1000.0, Ask(1), Granted(0)),
            (1000.0, Ask(1), Until(1900.0, 0)),
            (1000.0, Ask(10), Until(2000.0, 0)),
            (1900.0, Ask(8), Granted(1)),
            (1900.0, Settle(10), Left(0)),
            (1900.0, Ask(1), Until(2900.0, 0)),
            (1900.0, Settle(3), Left(6)),
            (1950.0, Ask(1), Granted(5)),
            (2900.0, Ask(10), Until(2950.0, 9)),
            (2900.0, Book(10), Until(2950.0, 0)),
            (2900.0, TakeBack, Left(9)),
            (2950.0, Ask(10), Granted(0)),
            (10000.0, Drain, Left(0)),
            (10000.0, Ask(1), Until(10100.0, 0)),
            (10500.0, Ask(5), Granted(0)),
            (10500.0, Ask(1), Until(10600.0, 0)),
            (-5000.0, Ask(1), Until(-4900.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_log_keeps_its_calls_through_a_drain_and_is_drained_anew() {
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(4), Granted(6)),
            // The other six count as used evenly since -500.
            (500.0, Drain, Left(0)),
            (500.0, Ask(1), Until(666.667, 0)),
            (1000.0, Ask(2), Granted(5)),
            (1100.0, Drain, Left(0)),
            (1500.0, Ask(5), Until(1725.0, 3)),
            (1725.0, Ask(5), Granted(0)),
            (2100.0, Ask(5), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_log_drained_twice_gives_nothing_back_after_a_correction_above_it() {
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(5), Granted(5)),
            (900.0, Drain, Left(0)),
            (920.0, Settle(10), Left(0)),
            // Ten and the five of the first drain.
            (950.0, Drain, Left(0)),
            (1000.0, Ask(5), Until(1920.0, 0)),
            (1920.0, Ask(5), Granted(4)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_log_takes_what_it_has_left_for_gone_until_a_refused_call_may_come_again() {
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            // Of ten only these six were there. One of the other four returns then, and shows how the others would do,
            // which return within the second of two 32nds of a second.
            (100.0, Refused(1_000), Left(0)),
            (100.0, Ask(1), Until(1000.0, 0)),
            (1000.0, Ask(6), Granted(0)),
            (1000.0, Ask(1), Until(1100.0, 0)),
            (1100.0, Ask(1), Granted(0)),
            (1100.0, Ask(1), Until(1141.667, 0)),
            // It was not there either: all four are missing again.
            (1104.0, Declined(1_000), Left(0)),
            (1104.0, Ask(1), Until(2000.0, 0)),
            (2000.0, Ask(6), Granted(0)),
            (2000.0, Ask(1), Until(2104.0, 0)),
            (2104.0, Ask(1), Granted(0)),
            (2166.5, Ask(3), Granted(0)),
        ],
    );
    // Calls of one burst are refused one after the other, and only the first says when; a later one says it anew.
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            (100.0, Refused(1_000), Left(0)),
            (225.0, Refused(1_000), Left(0)),
            (1000.0, Ask(6), Granted(0)),
            (1000.0, Ask(1), Until(1100.0, 0)),
            (1000.0, Refused(226), Left(0)),
            (1000.0, Ask(1), Until(1226.0, 0)),
        ],
    );
    // In a long window, too, one comes back after the wait, and who is refused then waits as long again.
    play(
        &[Limit::sliding_log(Rate::per_minute(10))],
        &[
            (0.0, Ask(1), Granted(9)),
            (20.0, Declined(1_000), Left(0)),
            (20.0, Ask(1), Until(1020.0, 0)),
            (1020.0, Ask(1), Granted(0)),
            (1040.0, Declined(1_000), Left(0)),
            (1040.0, Ask(1), Until(3103.334, 0)),
        ],
    );
    // However often it refuses and says that all is used up in turn, all of it is back in a window and a second.
    play(
        &[Limit::sliding_log(Rate::per_minute(10))],
        &[
            (0.0, Ask(1), Granted(9)),
            (20_000.0, Drain, Left(0)),
            (20_001.0, Declined(1_000), Left(0)),
            (20_002.0, Drain, Left(0)),
            (20_003.0, Declined(1_000), Left(0)),
            (20_003.0, Ask(10), Until(81_003.0, 0)),
        ],
    );
    // A short wait is a wait.
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            (10.0, Ask(1), Granted(3)),
            (20.0, Declined(90), Left(0)),
            (20.0, Ask(1), Until(110.0, 0)),
        ],
    );
    // What leaves at about the same time goes first.
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(3), Granted(7)),
            (50.0, Ask(3), Granted(4)),
            (1000.0, Ask(3), Granted(4)),
            (1020.0, Refused(1_000), Left(0)),
            (1050.0, Ask(3), Granted(0)),
            (1200.0, Ask(1), Until(2000.0, 0)),
            (2000.0, Ask(3), Granted(0)),
            (2000.0, Ask(1), Until(2050.0, 0)),
            (2050.0, Ask(4), Granted(0)),
        ],
    );
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(4), Granted(6)),
            (0.0, Ask(1), Granted(5)),
            (100.0, Declined(1_000), Left(0)),
            // Six are more than half: what is refused of the others still counts as used.
            (1000.0, Ask(1), Granted(3)),
            (1010.0, Declined(1_000), Left(0)),
            (1999.0, Ask(1), Until(2000.0, 0)),
        ],
    );
    // A pause ends while something is missing still: all of it returns evenly over a period, as after any other.
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            (100.0, Refused(1_000), Left(0)),
            (1150.0, Drain, Left(0)),
            (1150.0, Ask(1), Until(1250.0, 0)),
            (2149.0, Ask(10), Until(2150.0, 9)),
        ],
    );
    // It asks for no wait: what is missing returns evenly over a period.
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            (100.0, Refused(0), Left(0)),
            (100.0, Ask(1), Until(350.0, 0)),
            (350.0, Ask(1), Granted(0)),
            (1000.0, Ask(8), Granted(0)),
        ],
    );
    // Another one a little later moves it by as little.
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            (100.0, Refused(0), Left(0)),
            (101.0, Refused(0), Left(0)),
            (102.0, Refused(0), Left(0)),
            (102.0, Ask(1), Until(352.0, 0)),
        ],
    );
    // Nor does it matter between two that ask for a wait.
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(6), Granted(4)),
            (100.0, Refused(1_000), Left(0)),
            (110.0, Refused(0), Left(0)),
            (120.0, Refused(1_000), Left(0)),
            (1000.0, Ask(6), Granted(0)),
            (1000.0, Ask(1), Until(1100.0, 0)),
            (1000.0, Ask(4), Until(1162.5, 0)),
        ],
    );
    // Refusals of which nothing was missing say nothing of later ones.
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(10), Granted(0)),
            (100.0, Refused(1_000), Left(0)),
            (101.0, Refused(1_000), Left(0)),
            (1000.0, Ask(6), Granted(4)),
            (1010.0, Refused(100), Left(0)),
            (1010.0, Ask(1), Until(1110.0, 0)),
        ],
    );
    // The margin is for what the service may not have seen yet: once it is known when a call had, not for its own wait.
    play(
        &[Limit::sliding_log(ten_a_second()).jitter_margin(ms(100))],
        &[
            (0.0, Ask(6), Granted(4)),
            (0.0, Answered, Left(4)),
            (100.0, Refused(1_000), Left(0)),
            (1010.0, Ask(6), Granted(0)),
            (1010.0, Ask(1), Until(1100.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_log_keeps_what_has_come_free_since_a_refused_call_was_sent() {
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(5), Granted(5)),
            (500.0, Ask(5), Granted(0)),
            (1000.0, Ask(5), Granted(0)),
            // The other five have left since: of them it says nothing.
            (1600.0, Declined(1_000), Left(5)),
            (1600.0, Ask(6), Until(2600.0, 5)),
            (1600.0, Ask(5), Granted(0)),
            (1600.0, Ask(1), Until(2600.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_log_has_nothing_left_after_a_429_that_took_longer_than_its_window() {
    play(
        &[Limit::sliding_log(ten_a_second())],
        &[
            (0.0, Ask(10), Granted(0)),
            (1200.0, Declined(1_000), Left(0)),
            (1200.0, Ask(1), Until(2200.0, 0)),
            (2731.25, Ask(10), Granted(0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_log_counts_a_call_from_when_it_had_arrived() {
    play(
        &[Limit::sliding_log(ten_a_second()).jitter_margin(ms(64))],
        &[
            (0.0, Ask(4), Granted(6)),
            // Known to the next of 32 parts of the margin.
            (30.0, Answered, Left(6)),
            (40.0, Ask(6), Granted(0)),
            (40.0, Ask(1), Until(1031.376, 0)),
            (1032.0, Ask(4), Granted(0)),
            (1032.0, Ask(1), Until(1104.0, 0)),
            // Later than the margin it says nothing.
            (1100.0, Answered, Left(0)),
            (1104.0, Ask(6), Granted(0)),
            (1104.0, Ask(1), Until(2096.0, 0)),
        ],
    );
}

#[test]
pub(super) fn a_sliding_log_lasts_longer_by_its_margin() {
    play(
        &[Limit::sliding_log(ten_a_second()).jitter_margin(ms(100))],
        &[(0.0, Ask(10), Granted(0)), (0.0, Ask(1), Until(1100.0, 0)), (1100.0, Ask(10), Granted(0))],
    );
}
