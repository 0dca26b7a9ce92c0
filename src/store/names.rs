//! The policy names in use in this process. Two limiters of one name that do not share a store let each
//! number through twice, which looks exactly like a limiter that works.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;

#[derive(Default)]
struct InUse {
    /// The store of each limiter.
    stores: Vec<usize>,
    warned: bool,
}

static NAMES: LazyLock<Mutex<HashMap<Box<str>, InUse>>> = LazyLock::new(Mutex::default);

pub(super) fn open(policy: &str, store: usize) {
    let mut names = NAMES.lock();
    let in_use = names.entry(policy.into()).or_default();
    let apart = in_use.stores.iter().any(|other| *other != store);
    in_use.stores.push(store);
    if apart && !std::mem::replace(&mut in_use.warned, true) {
        drop(names);
        tracing::warn!(
            policy,
            "two limiters of one policy name with stores of their own: each lets its whole budget through"
        );
    }
}

pub(super) fn leave(policy: &str, store: usize) {
    let mut names = NAMES.lock();
    let Some(in_use) = names.get_mut(policy) else { return };
    if let Some(i) = in_use.stores.iter().position(|other| *other == store) {
        in_use.stores.swap_remove(i);
    }
    if in_use.stores.is_empty() {
        names.remove(policy);
    }
}
