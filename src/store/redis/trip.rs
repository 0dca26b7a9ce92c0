//! One trip to Redis and back, within the store's time budget.
//!
//! What makes it fail for everybody opens the breaker, so that the next call does not try.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{RedisError, Value};
use tokio::time::{Instant, timeout_at};

use super::fault::Fault;
use super::hub::{Away, Hub};
use super::link::Link;
use super::wire::Call;

impl Hub {
    /// Connects if that was not done yet, within the store's time budget: afterwards it is known whether the
    /// server was promoted lately, and with it [`Self::is_settling`].
    pub(crate) async fn ready(&self) -> Result<(), Away> {
        if self.link.load().is_some() {
            return Ok(());
        }
        self.within_budget(None, |seen| async move { self.link(None, seen).await.map(|_| ()) }).await
    }

    /// One trip, within the store's time budget. Never repeated once it may have been sent.
    pub(crate) async fn run(&self, call: &Call) -> Result<Value, Away> {
        let key = call.keys.first().map(Vec::as_slice);
        self.within_budget(key, |seen| self.attempt(call, seen)).await
    }

    /// What is not done when the budget is used up, or fails for everybody, opens the breaker.
    async fn within_budget<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        key: Option<&[u8]>,
        work: impl FnOnce(Arc<AtomicU64>) -> F,
    ) -> Result<T, Away> {
        if self.breaker.is_open() {
            self.keep_probing();
            return Err(Away);
        }
        // The connection that the work was last seen on: its fault says nothing about a newer one.
        let seen = Arc::new(AtomicU64::new(self.connections()));
        let budget = self.settings().budget;
        let fault = match in_time(Instant::now() + budget, work(seen.clone())).await {
            Some(Ok(done)) => return Ok(done),
            Some(Err(fault)) => fault,
            None => Fault::Broken(format!("no answer within {budget:?}")),
        };
        match fault {
            Fault::Lost(text) => tracing::debug!("a call to Redis was lost: {text}"),
            Fault::Call(text) => self.complain(&text),
            fault => self.turn_away(seen.load(Ordering::Acquire), fault.text(), key),
        }
        Err(Away)
    }

    async fn attempt(&self, call: &Call, seen: Arc<AtomicU64>) -> Result<Value, Fault> {
        let link = self.link(None, seen.clone()).await?;
        let fault = match link.run(call).await.map_err(|error| Fault::of(&error)) {
            Ok(value) => {
                if self.broken.load(Ordering::Relaxed) != 0 {
                    self.broken.store(0, Ordering::Relaxed);
                }
                self.tend();
                return Ok(value);
            }
            Err(fault @ Fault::Broken(_)) => fault,
            Err(fault) => return Err(fault),
        };
        // It may only have been idle for too long, which is no outage; two in a row are one.
        let before = self.broken.swap(link.number, Ordering::AcqRel);
        if before != 0 && before != link.number {
            return Err(fault);
        }
        self.link(Some(link.number), seen).await?;
        Err(Fault::Lost("the connection broke under a call that may have been run"))
    }

    /// The connection; another one than `broken`, made if need be by one caller for all.
    async fn link(&self, broken: Option<u64>, seen: Arc<AtomicU64>) -> Result<Arc<Link>, Fault> {
        let usable = || {
            // What was sent to a connection whose runtime has ended would go nowhere.
            let link = self.link.load_full().filter(|_| !self.heart.is_homeless());
            link.filter(|link| Some(link.number) != broken && !link.is_closed())
        };
        let link = match usable() {
            Some(link) => link,
            None => {
                let _turn = self.connecting.lock().await;
                match usable() {
                    Some(link) => link,
                    None if self.is_away() => return Err(Fault::Lost("Redis went away meanwhile")),
                    None => {
                        let made = self.connect().await.map_err(|error| connect_fault(&error))?;
                        self.adopt(made)
                    }
                }
            }
        };
        seen.store(link.number, Ordering::Release);
        Ok(link)
    }
}

fn connect_fault(error: &RedisError) -> Fault {
    match Fault::of(error) {
        Fault::Refuses(text) => Fault::Refuses(text),
        fault => Fault::Broken(format!("could not connect: {}", fault.text())),
    }
}

/// The work's result, unless the deadline passes first.
async fn in_time<F: Future>(deadline: Instant, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    if let Ok(done) = timeout_at(deadline, work.as_mut()).await {
        return Some(done);
    }
    // A runtime that was held up finds its timers and its sockets due together: what has arrived is not late.
    for _ in 0..8 {
        tokio::task::yield_now().await;
        if let Some(done) = poll_once(work.as_mut()).await {
            return Some(done);
        }
    }
    None
}

async fn poll_once<F: Future>(mut work: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match work.as_mut().poll(cx) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        })
    })
    .await
}
