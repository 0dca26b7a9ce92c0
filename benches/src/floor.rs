//! The least that a decision in this process can cost: what no store of keys can leave out.
//!
//! The same lock, the same keyed hash and the same table as the in-process store has, and nothing of a limit: a
//! number goes up. Measured beside the decisions, it says which part of them is the machine's.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::time::Instant;

/// A number for each key, under one lock.
#[derive(Debug, Default)]
pub struct Floor(Mutex<HashMap<String, u64, RandomState>>);

impl Floor {
    /// A table with one key.
    pub fn with(key: &str) -> Self {
        let floor = Self::default();
        floor.0.lock().insert(key.to_owned(), 0);
        floor
    }

    /// Takes the lock, finds the key, adds one.
    pub fn count(&self, key: &str) {
        if let Some(count) = self.0.lock().get_mut(key) {
            *count += 1;
        }
    }

    /// The same, and the clock is read under the lock, as it must be where callers are decided in order.
    pub fn count_now(&self, key: &str) -> Instant {
        let mut table = self.0.lock();
        let now = Instant::now();
        if let Some(count) = table.get_mut(key) {
            *count += 1;
        }
        now
    }
}
