//! What a caller asks for: a key, what the call costs, and how long it may be held back.

use std::time::Duration;

use smallvec::SmallVec;

/// One question to a limiter: may a call go under this key, at this cost, within this time?
///
/// Borrows its key. A plain `"key".into()` asks for one request.
///
/// ```
/// # use forbear::Ask;
/// # use std::time::Duration;
/// let ask = Ask::new("api.example.com").cost("tokens", 1_200).max_wait(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    pub(crate) key: &'a str,
    pub(crate) costs: SmallVec<[(&'a str, u64); 3]>,
    pub(crate) max_wait: Option<Duration>,
}

impl<'a> Ask<'a> {
    /// One request, or one seat, under `key`.
    #[inline]
    pub fn new(key: &'a str) -> Self {
        Self { key, costs: SmallVec::new(), max_wait: None }
    }

    /// States the cost in `unit`. Without a statement a call costs 1 in `requests` and 1 in `seats`, and
    /// every other unit that the policy counts must be stated. A cost of 0 neither asks nor moves a limit.
    /// Stated again, the later statement holds.
    #[inline]
    pub fn cost(mut self, unit: &'a str, cost: u64) -> Self {
        match self.costs.iter_mut().find(|(stated, _)| *stated == unit) {
            Some(stated) => stated.1 = cost,
            None => self.costs.push((unit, cost)),
        }
        self
    }

    /// How long the call may be held back. By default the policy's `max_wait`; of the two the shorter
    /// holds.
    #[inline]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }
}

impl<'a> From<&'a str> for Ask<'a> {
    #[inline]
    fn from(key: &'a str) -> Self {
        Ask::new(key)
    }
}

impl<'a> From<&'a String> for Ask<'a> {
    #[inline]
    fn from(key: &'a String) -> Self {
        Ask::new(key)
    }
}
