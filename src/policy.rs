//! The limits of one service, or of one kind of caller on a server.
//!
//! A [`Policy`] is a plain value: it can be built anywhere, cloned, and given to several limiters. It holds
//! no state. Its setters never fail; what is wrong with it is a [`ConfigError`] where a limiter is built.

use std::time::Duration;

use crate::limit::{Limit, LimitError};

/// The default of [`Policy::max_wait`], but for servers.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(120);
/// The default of [`Policy::max_waiting`].
pub(crate) const MAX_WAITING: usize = 10_000;
/// The most limits of one policy.
pub(crate) const MAX_LIMITS: usize = 16;

/// Why a limiter, a client or a layer could not be built. Names the policy and what is wrong in it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A limit of the policy is not one.
    #[error("policy `{policy}`, limit `{limit}`: {fault}")]
    Limit {
        /// Name of the policy.
        policy: String,
        /// Name of the limit.
        limit: String,
        /// What is wrong with it.
        #[source]
        fault: LimitError,
    },
    /// Two limits of one policy have the same name: give one another with [`Limit::named`].
    #[error(
        "policy `{policy}` has two limits named `{limit}`; give one of them another name with `Limit::named`"
    )]
    SameName {
        /// Name of the policy.
        policy: String,
        /// The name that two limits have.
        limit: String,
    },
    /// Anything else: a field of the policy or of a builder.
    #[error("policy `{policy}`: {field} {fault}")]
    Field {
        /// Name of the policy.
        policy: String,
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        fault: String,
    },
    /// A store: its address, or one of its settings.
    #[error("store: {field} {fault}")]
    Store {
        /// Which field.
        field: &'static str,
        /// What is wrong with it. Never holds the address, which may have a password in it.
        fault: String,
    },
}

/// The limits of one service, or of one kind of caller on a server, with how long a call may be held back
/// and how many may wait.
///
/// A policy without limits is allowed: it only follows pauses.
///
/// ```
/// # use forbear::{Limit, Policy};
/// # use std::time::Duration;
/// let policy = Policy::new("api.example.com")
///     .limit("500/min")
///     .limit("200k tokens/min")
///     .limit("8 at once")
///     .max_wait(Duration::from_secs(30));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a policy limits nothing until a limiter, a client or a layer is built with it"]
pub struct Policy {
    name: String,
    limits: Vec<Limit>,
    max_wait: Option<Duration>,
    max_waiting: usize,
    observe_only: bool,
}

impl Policy {
    /// A policy without limits. The name, 1 to 200 bytes without control characters, stands in errors and headers, and is part of where its state is
    /// kept: two limiters with one store and one policy name share their budgets.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            limits: Vec::new(),
            max_wait: None,
            max_waiting: MAX_WAITING,
            observe_only: false,
        }
    }

    /// Adds a limit, of at most 16. All limits of a policy hold together: a call goes when it fits under each.
    pub fn limit(mut self, limit: impl Into<Limit>) -> Self {
        self.limits.push(limit.into());
        self
    }

    /// How long one call is held back in all: in the queue, by pauses and between attempts. Never cuts a
    /// request under way. By default 120 s on the client and for a bare limiter, 0 on the server.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// How many calls may wait for one key; the next one is refused at once. 10,000 by default.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting;
        self
    }

    /// Decides, counts and lets everything through: a way to try numbers on live traffic.
    pub fn observe_only(mut self) -> Self {
        self.observe_only = true;
        self
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its limits, in the order in which they were added.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Whether it lets everything through.
    pub fn is_observe_only(&self) -> bool {
        self.observe_only
    }

    /// The stated [`max_wait`](Self::max_wait), if any.
    pub fn stated_max_wait(&self) -> Option<Duration> {
        self.max_wait
    }

    pub(crate) fn waiting_bound(&self) -> usize {
        self.max_waiting
    }

    /// The first fault of the policy: of its own fields, of a limit, and last of two names that are equal,
    /// for the name of a limit that did not read is no name.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let field = |field, fault: &str| {
            Err(ConfigError::Field { policy: self.name.clone(), field, fault: fault.to_owned() })
        };
        if self.name.is_empty() || self.name.len() > 200 || self.name.contains(|c: char| c.is_control()) {
            return field("name", "must be 1 to 200 printable characters");
        }
        if self.limits.len() > MAX_LIMITS {
            return field("limits", "are more than 16");
        }
        for limit in &self.limits {
            limit.checked().map_err(|fault| self.fault(limit, fault))?;
        }
        for (i, limit) in self.limits.iter().enumerate() {
            if self.limits[..i].iter().any(|other| other.name() == limit.name()) {
                return Err(ConfigError::SameName {
                    policy: self.name.clone(),
                    limit: limit.name().into_owned(),
                });
            }
        }
        Ok(())
    }

    pub(crate) fn fault(&self, limit: &Limit, fault: LimitError) -> ConfigError {
        ConfigError::Limit { policy: self.name.clone(), limit: limit.name().into_owned(), fault }
    }
}

impl From<&Policy> for Policy {
    fn from(policy: &Policy) -> Self {
        policy.clone()
    }
}
