//! A caller's place in line, and its wait there.
//!
//! A caller does nothing but wait for its answer, and looks now and then whether the line goes on: the line's
//! task may live in a runtime that nobody runs at the moment. Dropping a place gives it up.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::caller::Waiting;
use super::{Permit, Plan, Refused};
use crate::clock;

/// How long after its expected slot a caller first looks after the line; then whenever it has waited as long
/// again.
const LOOK_US: u64 = 100_000;

pub(super) struct Place {
    pub(super) plan: Arc<Plan>,
    pub(super) hash: u64,
    pub(super) seq: usize,
    pub(super) arrived: u64,
    pub(super) expected: u64,
    pub(super) deadline: u64,
}

impl Place {
    /// Waits for the answer.
    pub(super) async fn wait(self) -> Result<Permit, Refused> {
        let look = self.expected.max(self.arrived) + LOOK_US;
        let mut timer = std::pin::pin!(tokio::time::sleep_until(clock::instant(look.min(self.deadline))));
        std::future::poll_fn(|context| {
            loop {
                if let Poll::Ready(answer) = self.poll(context) {
                    return Poll::Ready(answer);
                }
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.plan.shared.queue.look_after(self.hash, self.seq);
                if let Poll::Ready(answer) = self.poll(context) {
                    return Poll::Ready(answer);
                }
                let now = clock::now_us();
                if now >= self.deadline {
                    // A call whose slot is charged goes, however late the wake.
                    if let Some(refused) = self.too_late() {
                        return Poll::Ready(Err(refused));
                    }
                }
                let look = now + now.saturating_sub(self.arrived).max(LOOK_US);
                let look = if now < self.deadline { look.min(self.deadline) } else { look };
                timer.as_mut().reset(clock::instant(look));
            }
        })
        .await
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<Permit, Refused>> {
        // Wakers are foreign code: copied before the lock, dropped after it.
        let mut waker = Some(context.waker().clone());
        let polled = self.plan.shared.queue.with_line(self.hash, self.seq, |line| {
            match line.caller(self.seq).state {
                Waiting::Granted(..) | Waiting::Refused(_) => return (line.remove(self.seq), None),
                Waiting::Absent => {
                    line.set(self.seq, Waiting::InLine);
                    line.turn.notify_one();
                }
                Waiting::InLine => {}
            }
            line.swap_waker(self.seq, &mut waker);
            (None, line.driver(self.hash))
        });
        let (caller, driver) = polled.expect("a caller stays in line until it was answered or gave up");
        if let Some(driver) = driver {
            driver.start();
        }
        match caller.map(|caller| caller.state) {
            Some(Waiting::Granted(permit, _)) => Poll::Ready(Ok(*permit)),
            Some(Waiting::Refused(refused)) => Poll::Ready(Err(refused)),
            _ => Poll::Pending,
        }
    }

    /// The refusal of one whose time is over, unless its slot is charged already.
    fn too_late(&self) -> Option<Refused> {
        let queue = &self.plan.shared.queue;
        let refused = queue.with_line(self.hash, self.seq, |line| {
            let booked = line.booked.as_ref().is_some_and(|booked| booked.seq == self.seq);
            (!booked).then(|| line.too_late(self.seq))
        });
        refused.flatten()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.plan.shared.queue.leave(self.hash, self.seq);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use crate::limiter::Limiter;
    use crate::policy::Policy;
    use crate::store::Local;

    #[tokio::test(start_paused = true)]
    async fn whoever_goes_leaves_no_line_behind() {
        let policy = Policy::new("left behind").limit("1 at once").limit("10/s burst 1");
        let limiter = Limiter::new(policy, Local::new()).unwrap();
        let seat = limiter.acquire("k").await.unwrap();
        let mut waits = Box::pin(limiter.acquire("k"));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(seat);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(limiter.waiting("k"), 0, "it was granted, and has not come for it");
        drop(waits);
        assert!(limiter.core.shared.queue.is_empty());
        assert_eq!(limiter.peek("k").await.limit("at-once").unwrap().remaining(), 1);
        assert_eq!(limiter.peek("k").await.limit("requests/s").unwrap().remaining(), 1);
    }
}
