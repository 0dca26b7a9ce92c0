//! The fields that tell a caller how it stands: `Retry-After`, `RateLimit`, `RateLimit-Policy` and
//! `X-RateLimit-Policy`.
//!
//! They are made of the decision by which the request went or did not, never of a second look at the state,
//! so they cannot contradict it. What an application has set itself stays and occurs once.

use std::borrow::Cow;
use std::time::Duration;

use forbear::signals::write::{self, QuotaPolicy, QuotaState};
use forbear::{Decision, LimitStatus};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static X_RATELIMIT_POLICY: HeaderName = HeaderName::from_static("x-ratelimit-policy");

/// On which responses the layer states how the caller stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Headers {
    /// On all that the layer decided about, refused or not.
    #[default]
    Always,
    /// On refusals only.
    OnRefusal,
    /// On none: a custom refusal goes out as it is. The default refusal keeps `Retry-After` and
    /// `X-RateLimit-Policy`, without which callers come back at once.
    Never,
}

/// How limits are called on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// By the limit's name.
    Short,
    /// `policy/limit`, where two policies of a layer have limits of one name.
    Qualified,
}

impl Naming {
    pub(crate) fn name<'a>(self, policy: &str, limit: &'a str) -> Cow<'a, str> {
        match self {
            Naming::Short => Cow::Borrowed(limit),
            Naming::Qualified => Cow::Owned(format!("{policy}/{limit}")),
        }
    }
}

/// Adds `RateLimit` and `RateLimit-Policy`, unless one of them is there already.
pub(crate) fn add_standing(headers: &mut HeaderMap, decisions: &[Decision], naming: Naming) {
    if headers.contains_key(&RATELIMIT) || headers.contains_key(&RATELIMIT_POLICY) {
        return;
    }
    let all = || decisions.iter().flat_map(|decision| decision.limits().map(move |limit| (decision, limit)));
    let names =
        all().map(|(decision, limit)| naming.name(decision.policy(), limit.name())).collect::<Vec<_>>();
    let states = all().zip(&names).map(|((decision, limit), name)| QuotaState {
        name,
        remaining: limit.remaining(),
        reset: reset(decision, limit),
    });
    let policies = all().zip(&names).map(|((_, limit), name)| QuotaPolicy {
        name,
        quota: limit.quota(),
        window: limit.period(),
        unit: if limit.unit() == "seats" { "concurrent-requests" } else { limit.unit() },
    });
    let fields = (
        write::rate_limit(&states.collect::<Vec<_>>()),
        write::rate_limit_policy(&policies.collect::<Vec<_>>()),
    );
    if let (Ok(standing), Ok(policy)) = fields {
        headers.insert(&RATELIMIT, standing);
        headers.insert(&RATELIMIT_POLICY, policy);
    }
}

/// When more is there: for the limit that refused, when the request would have fit; else when all of it is
/// there again. Nobody can tell when a seat comes back.
fn reset(decision: &Decision, limit: LimitStatus<'_>) -> Option<Duration> {
    limit.period()?;
    let refused = !decision.granted() && !limit.wait().is_zero();
    Some(if refused { limit.wait() } else { limit.reset_after() })
}

/// Adds `Retry-After` and the name of what refused, where they are not there already.
pub(crate) fn add_refusal(headers: &mut HeaderMap, wait: Option<Duration>, refused_by: &str) {
    if let Some(wait) = wait {
        headers.entry(RETRY_AFTER).or_insert_with(|| write::retry_after(wait));
    }
    if let Ok(name) = HeaderValue::from_str(refused_by) {
        headers.entry(&X_RATELIMIT_POLICY).or_insert(name);
    }
}
