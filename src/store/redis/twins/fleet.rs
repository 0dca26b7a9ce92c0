//! Seats of a fleet under everything that can go wrong with a report: lost, executed without an answer, repeated,
//! late, out of order; processes that die, that freeze for longer than their lease, and state that is lost.
//!
//! Eight processes keep to what a limiter has to keep to: a seat that was reported free is not used again without a new
//! grant, an answer that is late is never counted, one whose lease has passed takes none of what it had in hand. Counted
//! are the calls that really run.

use fastrand::Rng;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Value;

use super::*;
use crate::algorithm::Rules;
use crate::limit::{Limit, Margin};
use crate::policy::Policy;
use crate::store::redis::names::Names;

const PROCESSES: usize = 8;
const STEPS: usize = 150;
const LEASE_US: u64 = 10_000_000;
const BEAT_US: u64 = 3_000_000;
const PRESENCE: &str = "forbear:workers";

struct Process {
    worker: Worker,
    report: SeatReport,
    /// Calls that run; the rest of what is in use is spare.
    running: u64,
    /// Calls that wait for a seat.
    waiting: u64,
    /// When it last sent a report that was answered.
    renewed: u64,
    next_beat: u64,
    frozen_until: u64,
    /// The birth that the store's state had when last seen, and until when no seats are taken after another.
    born: u64,
    settles_until: u64,
    /// Calls that run although its lease passed: they may be more than the cap.
    overdue: u64,
}

struct Fleet<'a> {
    twin: &'a Twin,
    rng: Rng,
    now: u64,
    cap: u64,
    rules: Rules,
    names: Names,
    processes: Vec<Process>,
    /// Calls that were sent and that the store has not run yet.
    late: Vec<Call>,
    sessions: usize,
    /// Whether state is ever lost, and when it came to be.
    loses: bool,
    birth: u64,
}

impl<'a> Fleet<'a> {
    fn new(twin: &'a Twin, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let cap = rng.u64(1..=8);
        let policy = Policy::new("fleet").limit(Limit::concurrency(cap as u32));
        let rules = Rules::new(&policy).expect("no fault");
        let names = Names::new("forbear", "fleet", "key", &rules.labels);
        twin.ask("FLUSHALL SYNC");
        let loses = rng.u8(0..4) == 0;
        let (processes, late) = (Vec::new(), Vec::new());
        let mut fleet = Self {
            twin,
            rng,
            now: START,
            cap,
            rules,
            names,
            processes,
            late,
            sessions: 0,
            loses,
            birth: START,
        };
        fleet.bear();
        for _ in 0..PROCESSES {
            let process = fleet.start();
            fleet.processes.push(process);
        }
        fleet
    }

    fn bear(&mut self) {
        self.birth = self.now;
        self.twin.ask(&format!("HSET {PRESENCE} born {}", self.birth));
    }

    fn start(&mut self) -> Process {
        self.sessions += 1;
        let worker = Worker { presence: Some(PRESENCE.into()), ..worker(&format!("s{}", self.sessions)) };
        worker.born.store(self.birth, std::sync::atomic::Ordering::Relaxed);
        Process {
            worker,
            report: SeatReport::default(),
            running: 0,
            waiting: 0,
            renewed: self.now,
            next_beat: self.now + self.rng.u64(0..BEAT_US),
            frozen_until: 0,
            born: self.birth,
            // A new process cannot know whether everyone has reported.
            settles_until: if self.loses { self.now + LEASE_US } else { 0 },
            overdue: 0,
        }
    }

    /// Sends a trip for the callers that wait, or a report; the network may do to it what it wants.
    fn send(&mut self, i: usize, with_callers: bool) {
        let now = self.now;
        let process = &mut self.processes[i];
        if now >= process.renewed + LEASE_US {
            // What is in hand may be others' by now; what runs, runs.
            process.report.spare = 0;
            process.overdue = process.running;
        }
        process.report.turn += 1;
        process.report.in_use = process.running + process.report.spare;
        process.report.may_take = now >= process.settles_until;
        process.report.waits = !with_callers && process.waiting > 0;
        let report = process.report;
        let callers = if with_callers { process.waiting } else { 0 };
        let callers = (0..callers).map(|_| Waiter { held_us: LEASE_US, costs: &[1] }).collect::<Vec<_>>();
        let (rules, margin, names) = (&self.rules, Margin::Default, &self.names);
        let seats = [report];
        let parts = [TripPart { rules, margin, names, seen: None, seats: &seats, fates: &[] }];
        let trip =
            Trip { now: Some(now), worker: &process.worker, parts: &parts, callers: &callers, forced: false };
        match self.rng.u8(0..20) {
            // Never arrives; arrives much later; runs, and nobody hears.
            0 => {}
            1 | 2 => self.late.push(trip.call()),
            3 | 4 => _ = self.twin.trip(&trip),
            repeats => {
                let reply = self.twin.trip(&trip);
                if repeats == 5 {
                    self.twin.trip(&trip);
                }
                let granted = reply.slots.iter().filter(|slot| matches!(slot, Slot::At(_))).count() as u64;
                self.hear(i, reply.parts[0].seats[0], granted);
            }
        }
    }

    fn hear(&mut self, i: usize, answer: SeatAnswer, granted: u64) {
        let process = &mut self.processes[i];
        process.renewed = self.now;
        process.report.epoch = answer.epoch;
        let new = answer.granted.saturating_sub(process.report.seen);
        process.report.seen += new;
        process.report.spare += new;
        process.report.spare -= granted;
        process.running += granted;
        process.waiting -= granted;
    }

    /// What was published to a process, if the network brings it.
    fn deliver(&mut self, news: &News) {
        let News::Seats { epoch, granted, .. } = *news else { return };
        for process in &mut self.processes {
            let is_mine = process.report.epoch == epoch && process.frozen_until <= self.now;
            if is_mine && self.now < process.renewed + LEASE_US && self.rng.u8(0..10) > 2 {
                let new = granted.saturating_sub(process.report.seen);
                process.report.seen += new;
                process.report.spare += new;
            }
        }
    }

    /// Spare seats go to callers that wait in the process.
    fn sit_down(&mut self) {
        for process in self.processes.iter_mut().filter(|process| process.frozen_until <= self.now) {
            if self.now < process.renewed + LEASE_US {
                let sits = process.report.spare.min(process.waiting);
                process.report.spare -= sits;
                process.waiting -= sits;
                process.running += sits;
            }
        }
    }

    fn beat(&mut self, i: usize) {
        let born = self.twin.ask(&format!("HGET {PRESENCE} born"));
        let born = redis::from_redis_value::<Option<u64>>(born).expect("a number");
        let born = born.unwrap_or_else(|| {
            self.bear();
            self.birth
        });
        let process = &mut self.processes[i];
        if born != process.born {
            process.born = born;
            // Reports get lost here, so one heartbeat is not enough: until everyone has reported, or its lease has passed.
            process.settles_until = self.now + LEASE_US;
        }
        process.worker.born.store(born, std::sync::atomic::Ordering::Relaxed);
        process.next_beat = self.now + BEAT_US;
        self.send(i, false);
    }

    fn step(&mut self) {
        self.now += match self.rng.u8(0..8) {
            0..=3 => self.rng.u64(0..50_000),
            4..=6 => self.rng.u64(0..1_000_000),
            _ => self.rng.u64(0..3_000_000),
        };
        for i in 0..PROCESSES {
            let process = &self.processes[i];
            if process.frozen_until <= self.now && process.next_beat <= self.now {
                self.beat(i);
            }
        }
        let i = self.rng.usize(0..PROCESSES);
        let is_awake = self.processes[i].frozen_until <= self.now;
        match self.rng.u8(0..40) {
            0 => self.processes[i] = self.start(),
            1 => self.processes[i].frozen_until = self.now + self.rng.u64(0..3 * LEASE_US),
            2 if self.loses && self.rng.u8(0..4) == 0 => _ = self.twin.ask("FLUSHALL SYNC"),
            3..=5 if !self.late.is_empty() => {
                let late = self.late.swap_remove(self.rng.usize(0..self.late.len()));
                self.twin.run(&late);
            }
            6..=14 => {
                let process = &mut self.processes[i];
                let ends = self.rng.u64(0..=process.running);
                process.running -= ends;
                process.overdue = process.overdue.min(process.running);
                if is_awake && self.rng.bool() {
                    self.send(i, false);
                }
            }
            _ if is_awake => {
                let process = &mut self.processes[i];
                process.waiting = (process.waiting + self.rng.u64(0..4)).min(4);
                self.sit_down();
                let with_callers = self.processes[i].waiting > 0;
                self.send(i, with_callers);
            }
            _ => {}
        }
        self.sit_down();
    }

    /// Calls that really run, and those among them that no lease covers any more.
    fn count(&mut self) -> (u64, u64) {
        for process in &mut self.processes {
            if self.now >= process.renewed + LEASE_US {
                process.overdue = process.running;
            }
        }
        let sum = |of: fn(&Process) -> u64| self.processes.iter().map(of).sum::<u64>();
        (sum(|process| process.running), sum(|process| process.overdue))
    }
}

#[test]
fn no_more_calls_run_than_there_are_seats_whatever_happens_to_reports() {
    let twin = Twin::new();
    let mut ear = Ear::new(&twin);
    let ear = std::cell::RefCell::new(&mut ear);
    let walked = TestRunner::new(walks(300)).run(&any::<u64>(), |seed| {
        let mut fleet = Fleet::new(&twin, seed);
        let mut best = 0;
        for step in 0..STEPS {
            fleet.step();
            for news in ear.borrow_mut().heard() {
                fleet.deliver(&news);
            }
            fleet.sit_down();
            let (running, overdue) = fleet.count();
            best = best.max(running);
            prop_assert!(
                running <= fleet.cap + overdue,
                "step {step}: {running} of {}, {overdue} overdue, losing {}",
                fleet.cap,
                fleet.loses
            );
        }
        fleet.rest(&mut ear.borrow_mut())?;
        prop_assert!(best > 0 || fleet.loses);
        Ok(())
    });
    if let Err(fault) = walked {
        panic!("{fault}");
    }
}

/// A copy that took over knows a process of an older life than the one it is in: what others hold is unknown there, too.
#[test]
fn who_is_known_of_another_life_is_told_so_before_it_is_forgotten() {
    let twin = Twin::new();
    twin.ask("FLUSHALL SYNC");
    let rules = Rules::new(&Policy::new("fleet").limit(Limit::concurrency(3))).expect("no fault");
    let names = Names::new("forbear", "fleet", "key", &rules.labels);
    let worker = worker("w");
    let answer = |report: SeatReport, callers: &[Waiter<'_>]| {
        let (rules, margin, names, seats) = (&rules, Margin::None, &names, [report]);
        let parts = [TripPart { rules, margin, names, seen: None, seats: &seats, fates: &[] }];
        let reply =
            twin.trip(&Trip { now: Some(START), worker: &worker, parts: &parts, callers, forced: false });
        reply.parts[0].seats[0]
    };
    let caller = [Waiter { held_us: LEASE_US, costs: &[1] }];
    for callers in [&caller[..], &[]] {
        let report = SeatReport { turn: 1, may_take: true, ..SeatReport::default() };
        let first = answer(report, &caller);
        assert_eq!((first.epoch > 0, first.granted), (true, 1));
        let report = SeatReport { epoch: first.epoch + 1_000, turn: 2, seen: 5, ..report };
        let told = answer(report, callers);
        assert_eq!((told.epoch > report.epoch, told.used, told.queued), (true, 0, false));
        let report = SeatReport { epoch: told.epoch, turn: 3, seen: told.granted, ..report };
        assert_eq!((answer(report, &[]).epoch, members(&twin, &names)), (0, 0));
    }
}

fn members(twin: &Twin, names: &Names) -> u64 {
    let [leases, ..] = names.seats(0);
    redis::from_redis_value(twin.ask(&format!("ZCARD {leases}"))).expect("a number")
}

/// Hears all that is published.
struct Ear {
    talk: Talk,
    mark: u64,
    spoke: RefCell<Talk>,
}

impl Ear {
    fn new(twin: &Twin) -> Self {
        let mut talk = Talk::with(&twin.server);
        talk.ask(["PSUBSCRIBE", "*"].iter().map(|word| word.as_bytes()));
        Self { talk, mark: 0, spoke: RefCell::new(Talk::with(&twin.server)) }
    }

    fn heard(&mut self) -> Vec<News> {
        self.mark += 1;
        let mark = self.mark.to_string();
        self.spoke.borrow_mut().ask(["PUBLISH", "mark", &mark].iter().map(|word| word.as_bytes()));
        let mut heard = Vec::new();
        loop {
            let Value::Array(message) = self.talk.answer() else { panic!("a message") };
            let payload = redis::from_redis_value::<Vec<u8>>(message[3].clone()).expect("bytes");
            if payload == mark.as_bytes() {
                return heard;
            }
            heard.extend(News::read(&payload));
        }
    }
}

impl Fleet<'_> {
    /// Everything is well again: all seats come back, and who waits gets one.
    fn rest(&mut self, ear: &mut Ear) -> Result<(), TestCaseError> {
        for late in std::mem::take(&mut self.late) {
            self.twin.run(&late);
        }
        // The dead are reaped after their lease, eight a trip.
        for _ in 0..8 {
            self.now += BEAT_US;
            for i in 0..PROCESSES {
                let process = &mut self.processes[i];
                (process.running, process.waiting, process.report.spare) = (0, 0, 0);
                self.beat_well(i);
            }
            ear.heard();
        }
        let mut served = [false; PROCESSES];
        for _ in 0..4 * PROCESSES {
            self.now += 10_000;
            for (i, served) in served.iter().enumerate() {
                self.processes[i].waiting = u64::from(!served);
                self.exchange(i, true);
            }
            for news in ear.heard() {
                self.deliver(&news);
            }
            self.sit_down();
            for (served, process) in served.iter_mut().zip(&mut self.processes) {
                *served |= process.running > 0;
                (process.running, process.waiting, process.report.spare) = (0, 0, 0);
            }
            if served.iter().all(|served| *served) {
                break;
            }
        }
        prop_assert!(served.iter().all(|served| *served), "{served:?} of {} seats", self.cap);
        Ok(())
    }

    fn beat_well(&mut self, i: usize) {
        let born = self.twin.ask(&format!("HGET {PRESENCE} born"));
        let born = redis::from_redis_value::<Option<u64>>(born).expect("a number");
        if born.is_none() {
            self.bear();
        }
        let process = &mut self.processes[i];
        process.worker.born.store(self.birth, std::sync::atomic::Ordering::Relaxed);
        (process.settles_until, process.frozen_until) = (0, 0);
        self.exchange(i, false);
    }

    /// A trip that nothing happens to.
    fn exchange(&mut self, i: usize, with_callers: bool) {
        let process = &mut self.processes[i];
        process.report.turn += 1;
        process.report.in_use = process.running + process.report.spare;
        (process.report.may_take, process.report.waits) = (true, !with_callers && process.waiting > 0);
        let callers = if with_callers { process.waiting } else { 0 };
        let callers = (0..callers).map(|_| Waiter { held_us: LEASE_US, costs: &[1] }).collect::<Vec<_>>();
        let (rules, margin, names, seats) = (&self.rules, Margin::Default, &self.names, [process.report]);
        let parts = [TripPart { rules, margin, names, seen: None, seats: &seats, fates: &[] }];
        let (now, worker) = (Some(self.now), &process.worker);
        let reply = self.twin.trip(&Trip { now, worker, parts: &parts, callers: &callers, forced: false });
        let granted = reply.slots.iter().filter(|slot| matches!(slot, Slot::At(_))).count() as u64;
        self.hear(i, reply.parts[0].seats[0], granted);
    }
}
