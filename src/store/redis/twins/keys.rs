//! What lies in Redis: names, sizes, expiries, and what is published.

use redis::Value;

use super::*;
use crate::algorithm::{Rules, State};
use crate::limit::{Limit, Margin, Rate};
use crate::policy::Policy;
use crate::store::redis::names::Names;

fn policy(name: &str, limits: &[Limit]) -> Rules {
    let named = limits.iter().enumerate().map(|(i, limit)| limit.clone().named(&format!("l{i}")));
    Rules::new(&named.fold(Policy::new(name), |policy, limit| policy.limit(limit))).expect("no fault")
}

fn kinds() -> [Limit; 7] {
    let rate = Rate::per_second(10);
    [
        Limit::rate(rate),
        Limit::token_bucket(rate, 5),
        Limit::leaky_bucket(rate, 5),
        Limit::fixed_window(rate),
        Limit::sliding_window(rate, 5),
        Limit::sliding_counter(rate),
        Limit::sliding_log(rate),
    ]
}

/// The cluster slot of a key, as the specification of Redis Cluster counts it.
fn cluster_slot(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{');
    let tag = open.and_then(|open| {
        let close = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &key[open + 1..open + 1 + close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        let crc = crc ^ u16::from(*byte) << 8;
        (0..8).fold(crc, |crc, _| if crc & 0x8000 > 0 { crc << 1 ^ 0x1021 } else { crc << 1 })
    });
    crc % 16_384
}

struct Asked<'a> {
    rules: &'a Rules,
    names: &'a Names,
    worker: Worker,
}

impl Asked<'_> {
    fn trip<R>(&self, now: Option<u64>, held_us: u64, with: impl FnOnce(&Trip<'_>) -> R) -> R {
        let costs = vec![1; self.names.limits.len()];
        let callers = [Waiter { held_us, costs: &costs }];
        let report = SeatReport { turn: 1, may_take: true, ..SeatReport::default() };
        let (rules, margin, names, seats) = (self.rules, Margin::None, self.names, [report; 2]);
        let parts = [TripPart { rules, margin, names, seen: None, seats: &seats, fates: &[] }];
        with(&Trip { now, worker: &self.worker, parts: &parts, callers: &callers, forced: false })
    }

    fn change(&self, what: What) -> Call {
        let (worker, rules, margin, names) = (&self.worker, self.rules, Margin::None, self.names);
        Change { now: None, worker, rules, margin, names, what, declined: &[] }.call()
    }
}

#[test]
fn all_keys_of_a_call_share_a_cluster_slot_and_none_shows_the_users_key() {
    assert_eq!((cluster_slot(b"123456789"), cluster_slot(b"a{foo}b")), (0x31c3, cluster_slot(b"foo")));
    let mut limits = kinds().to_vec();
    limits.extend([Limit::concurrency(3), Limit::concurrency(2).unit("slots")]);
    let nasty =
        ["", "{", "}{", "a}b{c", "\0", "a b\r\n", "sk-secret-123", "schlüssel-{ü}", &"x".repeat(5_000)];
    for name in ["api", "api.example.com", "{p}", "ü"] {
        let rules = policy(name, &limits);
        for (key, prefix) in nasty.iter().zip(nasty.iter().rev()) {
            let names = Names::new(prefix, name, key, &rules.labels);
            let asked = Asked { rules: &rules, names: &names, worker: worker("w") };
            let (costs, snapshot) = (vec![0; limits.len()], Snapshot::Log { used: 0, tail: 0 });
            let states = vec![snapshot; limits.len()];
            let given = GiveBack {
                rules: &rules,
                margin: Margin::None,
                names: &names,
                slot: 1,
                costs: &costs,
                before: &states,
                after: &states,
            };
            let calls = [asked.trip(None, 0, |trip| trip.call()), asked.change(What::Drain), given.call()];
            let keys = calls.iter().flat_map(|call| &call.keys).collect::<Vec<_>>();
            assert_eq!(calls[0].keys.len(), 1 + 7 + 2 * 3);
            for part in &keys {
                assert_eq!(cluster_slot(part), cluster_slot(keys[0]), "{}", String::from_utf8_lossy(part));
                let tag_on = &part[part.iter().position(|byte| *byte == b'{').expect("there is a tag")..];
                assert!(!String::from_utf8_lossy(tag_on).contains("secret"));
                assert!(tag_on.iter().all(u8::is_ascii_graphic));
            }
            let distinct = calls[0].keys.iter().collect::<HashSet<_>>();
            assert_eq!(distinct.len(), calls[0].keys.len());
        }
    }
    let rules = policy("api", &kinds()[..1]);
    let tags = nasty.map(|key| Names::new("forbear", "api", key, &rules.labels).pause);
    assert_eq!(tags.iter().collect::<HashSet<_>>().len(), nasty.len());
    let names = Names::new("forbear", "longer-name", "key", &rules.labels);
    assert!(names.limits[0].len() <= 44, "{}", names.limits[0]);
}

#[test]
fn a_bucket_takes_120_bytes_and_a_log_of_ten_thousand_110_000() {
    let twin = Twin::new();
    let bytes = |limit: Limit, calls: u64| {
        let rules = policy("longer-name", &[limit]);
        let names = Names::new("forbear", "longer-name", "some user's key", &rules.labels);
        let asked = Asked { rules: &rules, names: &names, worker: worker("w") };
        for call in 0..calls {
            let granted = asked.trip(Some(START + 1_000 * call), 0, |trip| twin.trip(trip));
            assert_eq!(granted.slots.len(), 1);
        }
        let usage = twin.ask(&format!("MEMORY USAGE {} SAMPLES 0", names.limits[0]));
        redis::from_redis_value::<u64>(usage).expect("a number")
    };
    for burst in [1, 50, 10_000] {
        let bucket = bytes(Limit::token_bucket(Rate::per_minute(500), burst), 1);
        assert!(bucket <= 120, "{bucket} bytes for a burst of {burst}");
    }
    let log = bytes(Limit::sliding_log(Rate::per_hour(10_000)), 10_000);
    assert!(log <= 110_000, "{log} bytes");
}

#[test]
fn a_pause_drains_a_log_by_its_head_alone() {
    const CALLS: u64 = 10_000;
    let twin = Twin::new();
    let rules = policy("long", &[Limit::sliding_log(Rate::per_hour(CALLS))]);
    let names = Names::new("forbear", "long", "key", &rules.labels);
    let asked = Asked { rules: &rules, names: &names, worker: worker("w") };
    for call in 0..CALLS - 1 {
        asked.trip(Some(START + 1_000 * call), 0, |trip| twin.trip(trip));
    }
    let (worker, rules, margin, names) = (&asked.worker, &rules, Margin::None, &names);
    let now = START + 1_000 * CALLS;
    let change = Change { now: Some(now), worker, rules, margin, names, what: What::Drain, declined: &[] };
    twin.ask("CONFIG RESETSTAT");
    twin.run(&change.call());
    let read = asked.trip(Some(now + 1), 0, |trip| twin.trip(trip));
    assert!(matches!(read.slots[..], [Slot::TooLate(_)]), "{:?}", read.slots);
    let stats = redis::from_redis_value::<String>(twin.ask("INFO commandstats")).expect("text");
    let wrote = ["lset", "rpush", "lrange", "del"].map(|command| stats.contains(&format!("_{command}:")));
    assert_eq!(wrote, [true, false, false, false], "{stats}");
}

#[test]
fn a_call_is_refused_until_exactly_its_wait_and_granted_then() {
    let twin = Twin::new();
    for limit in kinds() {
        twin.ask("FLUSHALL SYNC");
        let rules = policy("exact", std::slice::from_ref(&limit));
        let names = Names::new("forbear", "exact", "key", &rules.labels);
        let asked = Asked { rules: &rules, names: &names, worker: worker("w") };
        let is_leaky = rules.of(Margin::None)[0].hold_us().is_some();
        let mut now = START;
        let mut refused = 0;
        for _ in 0..60 {
            let reply = asked.trip(Some(now), 0, |trip| twin.trip(trip));
            match reply.slots[0] {
                Slot::At(at) => assert!(at == now || is_leaky),
                Slot::TooLate(at) if is_leaky => now = at,
                Slot::TooLate(at) => {
                    let early = asked.trip(Some(at - 1), 0, |trip| twin.trip(trip));
                    assert_eq!(early.slots, [Slot::TooLate(at)], "{limit}");
                    let then = asked.trip(Some(at), 0, |trip| twin.trip(trip));
                    assert_eq!(then.slots, [Slot::At(at)], "{limit}");
                    (now, refused) = (at, refused + 1);
                }
            }
        }
        assert!(refused > 0 || is_leaky, "{limit}");
    }
}

#[test]
fn a_refusal_writes_nothing_and_every_write_expires_on_the_servers_clock() {
    let twin = Twin::new();
    for limit in kinds() {
        twin.ask("FLUSHALL SYNC");
        let rules = policy("real", std::slice::from_ref(&limit));
        let names = Names::new("forbear", "real", "key", &rules.labels);
        let asked = Asked { rules: &rules, names: &names, worker: worker("w") };
        let ask = || asked.trip(None, 0, |trip| twin.trip(trip));
        while matches!(ask().slots[..], [Slot::At(_)]) {}
        let Value::Int(left) = twin.ask(&format!("PTTL {}", names.limits[0])) else { panic!("a number") };
        // A log is kept as long as a booking reaches beyond its window, and for readers with a margin.
        assert!(left > 0 && left <= 3_100, "{left} ms: {limit}");
        let dump = || twin.ask(&format!("DUMP {}", names.limits[0]));
        let before = dump();
        assert!(matches!(ask().slots[..], [Slot::TooLate(_)]));
        assert_eq!(dump(), before, "{limit}");
    }
}

#[test]
fn a_pause_is_told_to_everyone_and_so_is_what_a_row_is_made_of() {
    let twin = Twin::new();
    let mut talk = Talk::with(&twin.server);
    talk.ask(["SUBSCRIBE", "news:"].iter().map(|word| word.as_bytes()));
    let rules = policy("told", &[]);
    let names = Names::new("a prefix", "told", "key", &rules.labels);
    let asked = Asked { rules: &rules, names: &names, worker: worker("w") };
    let mut told = |what| {
        let changed = i64::from(!matches!(what, What::Answered { .. }));
        assert_eq!(twin.run(&asked.change(what)), Value::Int(changed));
        let Value::Array(message) = talk.answer() else { panic!("a message") };
        let payload = redis::from_redis_value::<Vec<u8>>(message[2].clone()).expect("bytes");
        News::read(&payload).expect("news of ours")
    };
    let News::Throttled { key, sent_ago_us: 5, session } =
        told(What::Throttled { sent_ago_us: 5, wait_us: 7 })
    else {
        panic!("of a 429")
    };
    assert_eq!((key, &*session), (names.pause.clone(), "w"));
    let paused = What::Pause { for_us: 3_000_000, probe_every_us: 1_000_000 };
    // Until one call may probe.
    let News::Pause { key, for_us: 1_000_000, generation: 0 } = told(paused) else { panic!("of that pause") };
    assert_eq!(key, names.pause);
    let News::Pause { for_us: 0, generation, .. } = told(What::Resume) else { panic!("of its end") };
    assert!(generation > 0);
    let News::Answered { key, sent_ago_us: 7, session } = told(What::Answered { sent_ago_us: 7 }) else {
        panic!("of a success")
    };
    assert_eq!((key, &*session), (names.pause.clone(), "w"));
    let reply = asked.trip(None, 0, |trip| twin.trip(trip));
    assert_eq!((reply.ended, reply.parts[0].pause.generation), (Ended::All, generation));
}

#[test]
fn states_are_read_where_all_their_numbers_are_there() {
    let rules = policy("p", &[Limit::fixed_window(Rate::per_second(1))]);
    let state = |numbers: &[u64]| rules.of(Margin::None)[0].state_of(numbers);
    assert!(matches!(state(&[5, 6, 9, 1, 7]), Some(State::Window(_))));
    assert_eq!(state(&[5, 6, 9, 2, 7]), None);
}
