//! How a store stands, as an operator reads it: in a health check, an alarm or a log line.
//!
//! Made by the hub out of what the breaker and the heartbeat know already: it never asks Redis, and never waits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How a [`Redis`](super::Redis) store stands. Prints as one line:
///
/// ```text
/// up for 312.4s, 8 live workers
/// away for 2.1s: could not connect: Connection refused
/// not asked yet
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    pub(super) standing: Standing,
    pub(super) workers: Option<u32>,
    /// What does not work as it should although Redis answers.
    pub(super) flaw: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    Unasked,
    Up { lasted: Duration },
    Away { lasted: Duration, reason: Arc<str> },
}

impl Health {
    /// Whether Redis is away, and calls are decided by [`on_outage`](super::Redis::on_outage): the alarm. A store
    /// that nobody asked yet is not away.
    pub fn is_away(&self) -> bool {
        matches!(self.standing, Standing::Away { .. })
    }

    /// How long it has stood so; `None` before the first call.
    pub fn lasted(&self) -> Option<Duration> {
        match &self.standing {
            Standing::Unasked => None,
            Standing::Up { lasted } | Standing::Away { lasted, .. } => Some(*lasted),
        }
    }

    /// Why Redis is away.
    pub fn reason(&self) -> Option<&str> {
        match &self.standing {
            Standing::Away { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// How many workers were live when last seen, this one included; `None` before the first heartbeat.
    pub fn workers(&self) -> Option<u32> {
        self.workers
    }

    /// What does not work as it should although Redis answers, such as hearing what others say.
    pub fn flaw(&self) -> Option<&str> {
        self.flaw.as_deref()
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.standing {
            Standing::Unasked => return f.write_str("not asked yet"),
            Standing::Up { lasted } => write!(f, "up for {:.1}s", lasted.as_secs_f64())?,
            Standing::Away { lasted, reason } => {
                write!(f, "away for {:.1}s: {reason}", lasted.as_secs_f64())?;
            }
        }
        if let Some(workers) = self.workers {
            let last = if self.is_away() { " when last seen" } else { "" };
            let noun = if workers == 1 { "worker" } else { "workers" };
            write!(f, ", {workers} live {noun}{last}")?;
        }
        if let Some(flaw) = &self.flaw {
            write!(f, "; {flaw}")?;
        }
        Ok(())
    }
}
