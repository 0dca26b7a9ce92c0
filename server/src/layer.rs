//! The layer: policies, keys and how to answer, checked once and shared by all services made of it.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use forbear::store::AnyStore;
use forbear::{ConfigError, Limiter, Policy};
use http::Response;
use http::request::Parts;
use tower_layer::Layer;

use crate::headers::{Headers, Naming};
use crate::key::Key;
use crate::refusal::Refusal;
use crate::rule::{self, Cost, Counts, Rule, Tally};
use crate::service::LimitService;

/// Keys kept by a local store that states no bound of its own.
const MAX_KEYS: usize = 100_000;

type Exempt = dyn Fn(&Parts) -> bool + Send + Sync;
type Refuse = dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync;

/// Limits the callers of a service: a [`tower_layer::Layer`] for axum, hyper and tonic.
///
/// Cheap to clone; clones, and the services made of them, share their budgets.
#[derive(Debug, Clone)]
pub struct LimitLayer {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) rules: Vec<Rule>,
    pub(crate) costs: Vec<Cost>,
    exempt: Vec<Box<Exempt>>,
    pub(crate) refuse: Option<Box<Refuse>>,
    pub(crate) headers: Headers,
    pub(crate) naming: Naming,
    /// Whether a missing peer was reported.
    pub(crate) reported: AtomicBool,
}

impl Shared {
    pub(crate) fn is_exempt(&self, head: &Parts) -> bool {
        self.exempt.iter().any(|exempt| exempt(head))
    }
}

impl LimitLayer {
    /// Begins a layer that limits each `key` by `policy`, with the state in `store`.
    ///
    /// A policy that states no `max_wait` refuses at once what does not fit now (only a leaky bucket holds
    /// requests in its own time), and no jitter margin is added. A [`Local`](forbear::store::Local) store
    /// keeps at most 100,000 keys, or the [`max_keys`](forbear::store::Local::max_keys) that it states; when
    /// all of them are limited, new keys share one budget.
    #[expect(clippy::new_ret_no_self, reason = "what is built is the layer, and can be built only if right")]
    pub fn new(policy: impl Into<Policy>, key: Key, store: impl Into<AnyStore>) -> LimitLayerBuilder {
        LimitLayerBuilder {
            store: store.into(),
            policies: vec![(policy.into(), key)],
            costs: Vec::new(),
            exempt: Vec::new(),
            refuse: None,
            headers: Headers::default(),
        }
    }

    /// The limiter of the policy of this name: to look at keys, to pause and resume them, or to change the
    /// policy's numbers while it runs.
    pub fn limiter(&self, policy: &str) -> Option<&Limiter> {
        self.shared.rules.iter().map(|rule| &rule.limiter).find(|limiter| limiter.policy().name() == policy)
    }

    /// What each policy has done since the layer was built, in the order in which they were added.
    pub fn tallies(&self) -> Vec<Tally> {
        self.shared.rules.iter().map(Rule::tally).collect()
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    fn layer(&self, inner: S) -> LimitService<S> {
        LimitService::new(inner, self.shared.clone())
    }
}

/// Gathers what a [`LimitLayer`] is made of. Its methods never fail; [`build`](Self::build) does.
#[must_use = "a layer limits nothing until it is built and added"]
pub struct LimitLayerBuilder {
    store: AnyStore,
    policies: Vec<(Policy, Key)>,
    costs: Vec<Cost>,
    exempt: Vec<Box<Exempt>>,
    refuse: Option<Box<Refuse>>,
    headers: Headers,
}

impl LimitLayerBuilder {
    /// Adds a policy with a key of its own. A request has to fit under all policies that have a key for it,
    /// and is charged by all of them or by none.
    ///
    /// Where policies hold requests (leaky buckets, or a stated `max_wait`), only the last one should: what
    /// the others were charged stands while a request is held.
    pub fn and(mut self, policy: impl Into<Policy>, key: Key) -> Self {
        self.policies.push((policy.into(), key));
        self
    }

    /// States what a request costs in `unit`, for all policies of the layer that count the unit. Without a
    /// statement it costs 1 in `requests` and 1 in `seats`; every other unit needs one. A cost of 0 is not
    /// limited by what counts the unit. Stated again, the later statement holds.
    ///
    /// Where the cost is known only afterwards, state an estimate and correct it by
    /// [`Settle`](crate::Settle).
    pub fn cost(
        mut self,
        unit: impl Into<String>,
        of: impl Fn(&Parts) -> u64 + Send + Sync + 'static,
    ) -> Self {
        let unit = unit.into();
        self.costs.retain(|cost| cost.unit != unit);
        self.costs.push(Cost { unit, of: Box::new(of) });
        self
    }

    /// Lets requests for which `exempt` holds through, uncounted and with nothing added to their responses:
    /// health checks, say. Given several times, each of them exempts.
    pub fn exempt(mut self, exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.exempt.push(Box::new(exempt));
        self
    }

    /// Makes the response to a refusal. `Retry-After`, `RateLimit`, `RateLimit-Policy` and
    /// `X-RateLimit-Policy` are added to it where it has none, unless [`headers`](Self::headers) says
    /// [`Headers::Never`]. By default a problem document of [`Refusal::status`]. With tonic, return what
    /// `tonic::Status::into_http` gives.
    ///
    /// ```
    /// # use forbear::{Policy, store::Local};
    /// # use forbear_server::{Key, LimitLayer};
    /// let layer = LimitLayer::new(Policy::new("address").limit("5/s"), Key::peer(), Local::new())
    ///     .refusal(|refusal| {
    ///         let wait = refusal.wait().unwrap_or_default().as_secs_f64();
    ///         let text = format!("{} says: not for {wait:.1} s\n", refusal.policy());
    ///         http::Response::builder().status(refusal.status()).body(text).unwrap()
    ///     })
    ///     .build();
    /// # assert!(layer.is_ok());
    /// ```
    pub fn refusal<B: Into<Bytes>>(
        mut self,
        refuse: impl Fn(&Refusal<'_>) -> Response<B> + Send + Sync + 'static,
    ) -> Self {
        self.refuse = Some(Box::new(move |refusal| refuse(refusal).map(Into::into)));
        self
    }

    /// On which responses the layer states how the caller stands; on all of them by default.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// The layer.
    ///
    /// # Errors
    /// The first fault, with policy and field named: a limit that is none, two limits of one name, two
    /// policies of one name, a name that cannot stand in a header, a limit in a unit whose cost nobody
    /// states, or a cost in a unit that no limit counts.
    pub fn build(self) -> Result<LimitLayer, ConfigError> {
        let field = |policy: &Policy, field, fault: String| {
            Err(ConfigError::Field { policy: policy.name().to_owned(), field, fault })
        };
        for (i, (policy, key)) in self.policies.iter().enumerate() {
            if self.policies[..i].iter().any(|(other, _)| other.name() == policy.name()) {
                let fault = "is the name of two policies of this layer, which would share their budgets";
                return field(policy, "name", fault.to_owned());
            }
            rule::check(policy, key, &self.costs)?;
        }
        let limits = || self.policies.iter().flat_map(|(policy, _)| policy.limits());
        let counted = |cost: &&Cost| limits().any(|limit| limit.counts() == cost.unit);
        if let Some(cost) = self.costs.iter().find(|cost| !counted(cost)) {
            let hint = if rule::costs_one(&cost.unit) { "" } else { "; give it to one with `Limit::unit`" };
            let fault = format!("is stated in `{}`, which no limit counts{hint}", cost.unit);
            return field(&self.policies[0].0, "cost", fault);
        }
        let mut names = HashSet::new();
        let short = limits().all(|limit| names.insert(limit.name()));
        let naming = if short { Naming::Short } else { Naming::Qualified };
        self.store.bound_keys(MAX_KEYS);
        let rules = self.policies.into_iter().map(|(policy, key)| {
            Ok(Rule { limiter: Limiter::new(policy, self.store.clone())?, key, counts: Counts::default() })
        });
        let rules = rules.collect::<Result<Vec<_>, ConfigError>>()?;
        let Self { costs, exempt, refuse, headers, .. } = self;
        let reported = AtomicBool::new(false);
        Ok(LimitLayer {
            shared: Arc::new(Shared { rules, costs, exempt, refuse, headers, naming, reported }),
        })
    }
}

impl fmt::Debug for LimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayerBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("rules", &self.rules).finish_non_exhaustive()
    }
}
