//! The in-process store, as a program holds it.

use std::sync::Arc;

use super::{AnyStore, Home, Table};

/// The in-process store. Cheap to clone; clones share their state.
///
/// Keys cost memory only while they are limited: one is forgotten once its state equals that of a key never
/// seen.
#[derive(Debug, Clone, Default)]
pub struct Local(pub(super) Arc<Table>);

impl Local {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most keys kept; by default no bound, and 100,000 where a server's layer is the first to use the
    /// store. When as many keys are limited, new keys share one overflow budget for each policy until some
    /// are forgotten; a key that is limited is never given a fresh budget to make room.
    pub fn max_keys(self, keys: usize) -> Self {
        self.0.keys.keep_at_most(keys);
        self
    }

    /// The keys kept now, after forgetting those whose state equals that of a fresh one.
    pub fn len(&self) -> usize {
        self.0.keys.len()
    }

    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn table(&self) -> Arc<Table> {
        self.0.clone()
    }

    /// Whether no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Local> for AnyStore {
    fn from(local: Local) -> Self {
        AnyStore(Home::Here(local.0))
    }
}

impl From<&Local> for AnyStore {
    fn from(local: &Local) -> Self {
        AnyStore(Home::Here(local.0.clone()))
    }
}
