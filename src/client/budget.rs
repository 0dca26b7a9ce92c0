//! The retry budget: how many transient faults of a service may be tried again.
//!
//! Retries of a service that is down only add to its load; a budget bounds them to a part of the traffic.
//! Throttles do not count: their own waits pace them. A service without an entry has a full budget, so
//! forgetting the full ones is only tidying.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Services kept before full ones are forgotten.
const KEPT: usize = 1_000;

/// Each call adds `share` of a retry, each second `per_second`; at most `most` are saved up.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    share: f64,
    per_second: f64,
    most: f64,
    services: Mutex<HashMap<String, Balance, RandomState>>,
    /// How many of them there are: none while all goes well.
    len: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct Balance {
    left: f64,
    at: Instant,
}

impl RetryBudget {
    pub(crate) fn new(share: f64, per_second: u32) -> Self {
        let share = if share.is_finite() { share.max(0.0) } else { 0.0 };
        let per_second = f64::from(per_second);
        Self {
            share,
            per_second,
            most: per_second.max(10.0),
            services: Mutex::default(),
            len: AtomicUsize::new(0),
        }
    }

    /// Whether the budgets of all services are full, as far as it knows.
    pub(crate) fn is_full(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// A call to the service has begun. Tells nothing of a service whose budget is full.
    pub(crate) fn deposit(&self, service: &str, now: Instant) {
        if let Some(balance) = self.services.lock().get_mut(service) {
            balance.left = (self.now_left(*balance, now) + self.share).min(self.most);
            balance.at = now;
        }
    }

    /// Takes one retry, if there is one.
    pub(crate) fn withdraw(&self, service: &str, now: Instant) -> bool {
        let mut services = self.services.lock();
        if services.len() >= KEPT && !services.contains_key(service) {
            services.retain(|_, balance| self.now_left(*balance, now) < self.most);
        }
        let balance = services.entry_ref(service).or_insert(Balance { left: self.most, at: now });
        let left = self.now_left(*balance, now);
        let taken = left >= 1.0;
        *balance = Balance { left: if taken { left - 1.0 } else { left }, at: now };
        self.len.store(services.len(), Ordering::Relaxed);
        taken
    }

    fn now_left(&self, balance: Balance, now: Instant) -> f64 {
        let passed: Duration = now.saturating_duration_since(balance.at);
        (balance.left + passed.as_secs_f64() * self.per_second).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b101_refills_by_calls_and_by_time_and_never_above_its_most() {
        let start = Instant::now();
        let budget = RetryBudget::new(0.2, 0);
        let drain = |now| (0..1_000).take_while(|_| budget.withdraw("a", now)).count();
        assert_eq!(drain(start), 10);
        (0..5).for_each(|_| budget.deposit("a", start));
        assert_eq!(drain(start), 1);
        (0..10_000).for_each(|_| budget.deposit("a", start));
        assert_eq!(drain(start), 10);

        let budget = RetryBudget::new(0.2, 20);
        let drain = |now| (0..1_000).take_while(|_| budget.withdraw("a", now)).count();
        assert_eq!(drain(start), 20);
        assert_eq!(drain(start + Duration::from_millis(500)), 10);
        assert_eq!(drain(start + Duration::from_secs(1_000)), 20);
        assert!(budget.withdraw("b", start), "services are apart");
    }

    #[test]
    fn full_budgets_are_forgotten() {
        let start = Instant::now();
        let budget = RetryBudget::new(0.2, 10);
        for i in 0..KEPT {
            assert!(budget.withdraw(&i.to_string(), start));
        }
        assert!(budget.withdraw("one more", start + Duration::from_secs(1)));
        assert_eq!(budget.services.lock().len(), 1);
    }
}
