//! From policies to a client: which budgets hold for which requests, in the right order.
//!
//! The order is the point: one retry outside, so that no permit is held over its sleeps and each attempt is
//! limited; then a throttle for each rule; an overall cap last, taken only when everything else is ready to
//! go. Nothing fails before `build`, which returns the first fault.

use std::sync::Arc;

use reqwest::Request;

use crate::client::route::{HostPattern, Route};
use crate::client::{Client, Retry, Throttle};
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::policy::{ConfigError, Policy};
use crate::signals::Profile;
use crate::store::{AnyStore, Local};

/// What a client is held to: a policy, whose state the client keeps in its own store, or a limiter, which
/// others may share.
#[derive(Debug, Clone)]
pub enum Limits {
    /// A limiter is made of it, in the builder's store.
    Policy(Policy),
    /// It and its clones share their budgets.
    Limiter(Limiter),
}

impl From<Policy> for Limits {
    fn from(policy: Policy) -> Self {
        Self::Policy(policy)
    }
}

impl From<&Policy> for Limits {
    fn from(policy: &Policy) -> Self {
        Self::Policy(policy.clone())
    }
}

impl From<Limiter> for Limits {
    fn from(limiter: Limiter) -> Self {
        Self::Limiter(limiter)
    }
}

impl From<&Limiter> for Limits {
    fn from(limiter: &Limiter) -> Self {
        Self::Limiter(limiter.clone())
    }
}

/// Builds a client that is held to more than one policy, or that is tuned.
///
/// Each request is held to every rule that is for it, in the order in which the rules were added; the
/// overall cap comes last. The key of a budget is the service: the authority of the URL.
///
/// ```
/// # use forbear::{Builder, Policy, Retry};
/// # use std::time::Duration;
/// # fn build() -> Result<forbear::Client, forbear::ConfigError> {
/// let client = Builder::new(reqwest::Client::new())
///     .host("api.example.com", Policy::new("example").limit("500/min").limit("8 at once"))
///     .each_host(Policy::new("others").limit("10/s"))
///     .overall(Policy::new("all").limit("64 at once"))
///     .retry(Retry::default().total_timeout(Duration::from_secs(60)))
///     .build()?;
/// # Ok(client) }
/// ```
#[must_use = "nothing is limited until the client is built and used"]
pub struct Builder {
    client: reqwest::Client,
    rules: Vec<(Rule, Limits)>,
    overall: Vec<Limits>,
    store: AnyStore,
    retry: Retry,
    /// Without rules until the end.
    throttle: Throttle,
    fault: Option<ConfigError>,
}

enum Rule {
    Route(Route),
    /// Hosts that no pattern of the builder matches; those are known at the end.
    Rest,
}

impl Builder {
    /// Around `client`, whose own settings stay as they are.
    pub fn new(client: reqwest::Client) -> Self {
        Self {
            client,
            rules: Vec::new(),
            overall: Vec::new(),
            store: Local::new().into(),
            retry: Retry::default(),
            throttle: Throttle::empty(),
            fault: None,
        }
    }

    /// For every request, besides what other rules say: each service by itself.
    pub fn policy(self, limits: impl Into<Limits>) -> Self {
        self.rule_of(Rule::Route(Route::Service), limits)
    }

    /// For every request to a host that no [`host`](Self::host) of this builder names: each service by
    /// itself.
    pub fn each_host(self, limits: impl Into<Limits>) -> Self {
        self.rule_of(Rule::Rest, limits)
    }

    /// For requests to one host, `api.example.com` or `api.example.com:8443`, or to all hosts below one,
    /// `*.example.com`: each service by itself. Without a port it is for all ports. Anything else is an error where the
    /// client is built.
    pub fn host(mut self, pattern: &str, limits: impl Into<Limits>) -> Self {
        let limits = limits.into();
        match HostPattern::parse(pattern) {
            Ok(pattern) => self.rule_of(Rule::Route(Route::Host(pattern)), limits),
            Err(fault) => {
                let policy = limits.name();
                self.keep(ConfigError::Field { policy, field: "host", fault });
                self
            }
        }
    }

    /// For requests for which `key` gives a key, each under that key. Runs with no lock held.
    pub fn rule<K: Into<String>>(
        self,
        key: impl Fn(&Request) -> Option<K> + Send + Sync + 'static,
        limits: impl Into<Limits>,
    ) -> Self {
        let route = Route::Rule(Arc::new(move |request| key(request).map(Into::into)));
        self.rule_of(Rule::Route(route), limits)
    }

    /// One budget over all requests of this client together, under the key `overall`, taken after all
    /// others. No service's signals count against it.
    pub fn overall(mut self, limits: impl Into<Limits>) -> Self {
        self.overall.push(limits.into());
        self
    }

    /// A budget of its own for each value of this header, under each rule but the overall cap. The value
    /// only ever stands in a key as a hash. By default all credentials share a service's budget. Default
    /// headers of the `reqwest::Client` are not seen. What is no header's name is an error where the client is built.
    pub fn per_credential(mut self, header: &str) -> Self {
        match header.parse() {
            Ok(name) => self.throttle = self.throttle.per_credential(name),
            Err(_) => self.keep(fault("per_credential", "is not the name of a header")),
        }
        self
    }

    /// Where the state of policies is kept: in this process by default. A limiter has its own store.
    pub fn store(mut self, store: impl Into<AnyStore>) -> Self {
        self.store = store.into();
        self
    }

    /// How calls are sent again. By default [`Retry::default`]; `Retry::default().attempts(1)` for never.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// What a request costs in `unit`, where it does not say itself by
    /// [`RequestExt::cost`](crate::RequestExt::cost). Runs with no lock held.
    pub fn cost(mut self, unit: &str, cost: impl Fn(&Request) -> u64 + Send + Sync + 'static) -> Self {
        self.throttle = self.throttle.cost(unit, cost);
        self
    }

    /// Requests for which this is true are not limited, like
    /// [`RequestExt::exempt`](crate::RequestExt::exempt). Runs with no lock held.
    pub fn exempt_if(mut self, exempt: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        self.throttle = self.throttle.exempt_if(exempt);
        self
    }

    /// Reads what responses say as this kind of service means it. See [`Throttle::profile`].
    pub fn profile(mut self, profile: Profile) -> Self {
        self.throttle = self.throttle.profile(profile);
        self
    }

    /// Looks for signals in the bodies of refusals too. See [`Throttle::read_bodies`].
    pub fn read_bodies(mut self) -> Self {
        self.throttle = self.throttle.read_bodies();
        self
    }

    /// The client.
    ///
    /// # Errors
    ///
    /// The first fault of the builder or of a policy; a policy for every request and one of the same name for some
    /// that has other limits, since both keep what was used under one key; a cost in a unit that no policy counts; no
    /// policy at all, which would be a client without limits.
    pub fn build(self) -> Result<Client, ConfigError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.rules.is_empty() && self.overall.is_empty() {
            return Err(fault(
                "policy",
                "is missing: give the client at least one, if need be without limits",
            ));
        }
        if let Some(policy) = self.clash() {
            let clash = format!(
                "`{policy}` has two sets of limits for one key; what was used is kept under that name"
            );
            return Err(fault("policy", &clash));
        }
        let patterns: Vec<_> = self.rules.iter().filter_map(|(rule, _)| rule.pattern().cloned()).collect();
        let rules = self.rules.into_iter().map(|(rule, limits)| match rule {
            Rule::Route(route) => (route, limits),
            Rule::Rest => (Route::Rest(patterns.clone()), limits),
        });
        let overall = self.overall.into_iter().map(|limits| (Route::One("overall"), limits));
        let mut throttle = self.throttle;
        for (route, limits) in rules.chain(overall) {
            let limiter = match limits {
                Limits::Policy(policy) => Limiter::new(policy, self.store.clone())?,
                Limits::Limiter(limiter) => limiter,
            };
            throttle = throttle.limiter(route, limiter);
        }
        if let Some(unit) = throttle.priced().find(|unit| !throttle.counts(unit)) {
            return Err(fault("cost", &format!("is in `{unit}`, which no policy of this client counts")));
        }
        let chain = reqwest_middleware::ClientBuilder::new(self.client);
        Ok(chain.with(self.retry).with(throttle).build())
    }

    /// The name of a policy for every request and of one for some that have not the same limits: each would forget
    /// what the other used.
    fn clash(&self) -> Option<&str> {
        let policies = || {
            let sound = self.rules.iter().filter_map(|(rule, limits)| Some((rule, limits.policy()?)));
            sound.filter(|(_, policy)| policy.check().is_ok())
        };
        let for_all = policies().filter(|(rule, _)| matches!(rule, Rule::Route(Route::Service)));
        let by_service = || {
            policies()
                .filter(|(rule, _)| matches!(rule, Rule::Rest | Rule::Route(Route::Service | Route::Host(_))))
        };
        for_all.map(|(_, all)| all).find_map(|all| {
            let clashes = |other: &Policy| other.name() == all.name() && !keeps_alike(all, other);
            by_service().any(|(_, other)| clashes(other)).then_some(all.name())
        })
    }

    fn rule_of(mut self, rule: Rule, limits: impl Into<Limits>) -> Self {
        self.rules.push((rule, limits.into()));
        self
    }

    fn keep(&mut self, fault: ConfigError) {
        self.fault.get_or_insert(fault);
    }
}

impl Rule {
    fn pattern(&self) -> Option<&HostPattern> {
        match self {
            Rule::Route(Route::Host(pattern)) => Some(pattern),
            _ => None,
        }
    }
}

impl Limits {
    fn policy(&self) -> Option<&Policy> {
        match self {
            Limits::Policy(policy) => Some(policy),
            Limits::Limiter(_) => None,
        }
    }

    fn name(&self) -> String {
        match self {
            Limits::Policy(policy) => policy.name().to_owned(),
            Limits::Limiter(limiter) => limiter.policy().name().to_owned(),
        }
    }
}

/// Whether two policies have limits of the same names and units, under which what was used is kept.
fn keeps_alike(one: &Policy, other: &Policy) -> bool {
    let has = |policy: &Policy, limit: &Limit| {
        policy.limits().iter().any(|it| (it.name(), it.counts()) == (limit.name(), limit.counts()))
    };
    one.limits().iter().all(|limit| has(other, limit)) && other.limits().iter().all(|limit| has(one, limit))
}

/// A fault of the client as a whole.
fn fault(field: &'static str, fault: &str) -> ConfigError {
    ConfigError::Field { policy: "client".to_owned(), field, fault: fault.to_owned() }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("rules", &self.rules.len())
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
