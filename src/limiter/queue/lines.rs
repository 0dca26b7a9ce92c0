//! All lines of one limiter: where to find one, what is booked ahead in them, and a line's turn.
//!
//! Everything here happens under the queue's lock: no waker is woken, and no permit dropped that is still good.

use std::collections::HashMap;

use crate::clock;
use crate::limiter::line::{Booked, Line, Step, Wakers};

/// The lines of one limiter.
#[derive(Default)]
pub(super) struct Lines {
    /// By the store's hash of the key.
    pub(super) by_hash: HashMap<u64, Vec<Line>>,
    /// The plan in force.
    pub(super) plan: usize,
}

impl Lines {
    pub(super) fn of<'a>(&'a mut self, hash: u64, key: &'a str) -> impl Iterator<Item = &'a mut Line> {
        self.by_hash.get_mut(&hash).into_iter().flatten().filter(move |line| &*line.key == key)
    }

    pub(super) fn find(&mut self, hash: u64, which: impl Fn(&Line) -> bool) -> Option<&mut Line> {
        self.by_hash.get_mut(&hash)?.iter_mut().find(|line| which(line))
    }

    /// Forgets lines that have ended.
    pub(super) fn tidy(&mut self, hash: u64) {
        if let Some(here) = self.by_hash.get_mut(&hash) {
            here.retain(|line| !line.is_over());
            if here.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
    }

    /// Takes back everything that is booked ahead.
    pub(super) fn unbook_all(&mut self) {
        let booked = self.by_hash.values_mut().flatten().filter_map(|line| line.booked.take());
        take_back(&mut booked.collect());
    }

    /// Takes back everything that is booked ahead under a key; its lines have to have a turn.
    pub(super) fn unbook(&mut self, hash: u64, key: &str) {
        let mut booked = self.of(hash, key).filter_map(|line| line.booked.take()).collect::<Vec<_>>();
        let shared = booked.iter().any(|booked| booked.permit.ticket().is_shared());
        take_back(&mut booked);
        if shared {
            // Other keys wait for the same seats.
            self.by_hash.values_mut().flatten().for_each(|line| line.turn.notify_one());
        }
    }

    /// Takes back what is booked for an instant after `now`; its lines have to have a turn.
    #[cfg(feature = "client")]
    pub(super) fn unbook_after(&mut self, hash: u64, now: u64) {
        let here = self.by_hash.get_mut(&hash).into_iter().flatten();
        let booked = here.filter_map(|line| line.booked.take_if(|booked| booked.permit.slot() > now));
        take_back(&mut booked.collect());
    }

    /// Grants what is due in a line, and books its next. Until when nothing more happens; `None` if nobody is
    /// in line.
    pub(super) fn turn(
        &mut self,
        hash: u64,
        which: impl Fn(&Line) -> bool,
        wakers: &mut Wakers,
    ) -> Option<u64> {
        let here = self.by_hash.get_mut(&hash)?;
        let at = here.iter().position(which)?;
        let mut now = clock::now_us();
        here[at].seatless = false;
        loop {
            match here[at].step(&mut now, wakers) {
                Step::Again => {}
                Step::Sleep(until) => return Some(until),
                Step::Done => return None,
                Step::Seatless => {
                    here[at].seatless = true;
                    let key = here[at].key.clone();
                    let claims = here.iter_mut().filter(|line| line.key == key).map(|line| line.claim(now));
                    let (freed, look_again) = claims
                        .fold((0, u64::MAX), |(freed, look), (more, again)| (freed + more, look.min(again)));
                    if freed == 0 {
                        return Some(look_again);
                    }
                    here[at].seatless = false;
                }
            }
        }
    }
}

/// Takes bookings back, the last one first: each is then the last of its budget.
fn take_back(booked: &mut Vec<Booked>) {
    booked.sort_unstable_by_key(|booked| booked.order);
    while let Some(booked) = booked.pop() {
        booked.permit.take_back();
    }
}
