//! The middleware that holds calls back, and lets the service hold them back.
//!
//! Per attempt: acquire a permit, send, read what the response says about limits, tell the limiter, and let
//! the permit ride on the response's body. Place it nearest the wire: what another middleware sends from
//! further in is not seen, and a cache further in consumes budget for its hits. Never sends without a
//! permit; of a user's closures only a rule's runs while there is one, where a redirect led elsewhere.

mod landed;
mod outgoing;

use std::borrow::Cow;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use http::{Extensions, HeaderName};
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use tokio::time::Instant;

use crate::client::body::Bodies;
use crate::client::call::{BoxFuture, Call, Once};
use crate::client::marker::{self, Inside, Layer};
use crate::client::receipt::{self, ReadBodies, Reading};
use crate::client::route::{self, KeyOf, Route, Services};
use crate::limiter::Limiter;
use crate::signals::{Class, Profile, Signals};

use outgoing::{Costs, Origin, Outgoing};

type CostOf = Box<dyn Fn(&Request) -> u64 + Send + Sync>;
type Exempt = Box<dyn Fn(&Request) -> bool + Send + Sync>;

const REPEATED: &str = "a second throttle of one limiter around a call does nothing; install it once";

/// Holds each request to the limits of a [`Limiter`], one budget for each service.
///
/// A seat is held until the response's body has ended or was dropped (a websocket gives it back when the
/// connection is upgraded). Answers to HEAD, 204, 304 and empty bodies give it back at once.
///
/// What a middleware cannot see: default headers and cookies of the `reqwest::Client`, the hops of a
/// redirect (what the last response says counts for the service that gave it, and a redirect to another
/// service is charged there afterwards), and that `reqwest` itself sends a refused HTTP/2 stream again.
///
/// In a chain: caches first, then [`Retry`](crate::Retry), then throttles, an overall cap last; a unit that requests
/// state must be one that the first of them counts. A middleware of your own between a retry and a throttle must poll
/// what `Next::run` gives it at once: from then on the call may hold its permit.
///
/// ```no_run
/// # use forbear::{Limiter, Policy, Retry, Throttle, store};
/// # fn build() -> Result<(), forbear::ConfigError> {
/// let limiter = Limiter::new(Policy::new("example").limit("500/min"), store::Local::new())?;
/// let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new())
///     .with(Retry::default())
///     .with(Throttle::new(limiter))
///     .build();
/// # Ok(()) }
/// ```
pub struct Throttle {
    rules: Vec<Rule>,
    /// Those of the rules, by their numbers.
    limiters: Vec<usize>,
    credential: Option<HeaderName>,
    costs: Vec<(String, CostOf)>,
    exempt: Option<Exempt>,
    reading: Reading,
    services: Services,
    bodies: Bodies,
    repeated: Once,
    lying: Once,
}

/// A limiter, and which requests it is for.
struct Rule {
    limiter: Limiter,
    route: Route,
}

impl Throttle {
    /// One budget for each service: the authority of the URL (lower case, IDNs in ASCII, without userinfo,
    /// dot at the end, and the scheme's own port), all credentials together.
    ///
    /// Limits that state no jitter margin get the client's default here; the limiter and its other clones
    /// keep theirs.
    pub fn new(limiter: Limiter) -> Self {
        Self::empty().limiter(Route::Service, limiter)
    }

    /// For none yet.
    pub(crate) fn empty() -> Self {
        Self {
            rules: Vec::new(),
            limiters: Vec::new(),
            credential: None,
            costs: Vec::new(),
            exempt: None,
            reading: Reading { profile: Profile::Generic, bodies: ReadBodies::Never },
            services: Services::default(),
            bodies: Bodies::default(),
            repeated: Once::default(),
            lying: Once::default(),
        }
    }

    /// One limiter more, decided together with those before it.
    pub(crate) fn limiter(mut self, route: Route, limiter: Limiter) -> Self {
        self.limiters.push(limiter.id());
        self.rules.push(Rule { limiter: limiter.with_margin(), route });
        self
    }

    /// Only requests for which `key` gives a key, each under that key. Runs with no lock held.
    pub fn rule<K: Into<String>>(
        mut self,
        key: impl Fn(&Request) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let key: KeyOf = Arc::new(move |request| key(request).map(Into::into));
        for rule in &mut self.rules {
            rule.route = Route::Rule(key.clone());
        }
        self
    }

    /// A budget of its own for each value of this header, which only ever stands in a key as a hash. Not
    /// the default: where credentials change with each request it would be no limit at all. Default headers
    /// of the `reqwest::Client` are not seen.
    pub fn per_credential(mut self, header: HeaderName) -> Self {
        self.credential = Some(header);
        self
    }

    /// What a request costs in `unit`, where it does not say itself. Runs with no lock held.
    pub fn cost(mut self, unit: &str, cost: impl Fn(&Request) -> u64 + Send + Sync + 'static) -> Self {
        self.costs.push((unit.to_owned(), Box::new(cost)));
        self
    }

    /// Requests for which this is true are not limited, like
    /// [`RequestExt::exempt`](crate::RequestExt::exempt). Runs with no lock held.
    pub fn exempt_if(mut self, exempt: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Self {
        self.exempt = Some(Box::new(exempt));
        self
    }

    /// Reads what responses say as this kind of service means it. By default names are read as most services
    /// use them.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.reading.profile = profile;
        self
    }

    /// Looks for signals in the bodies of error responses too, and in those of successes where the
    /// [`profile`](Self::profile) is of a service that refuses with a 200: JSON of up to 64 KiB that comes
    /// within a second. The response keeps its body. Not done by default.
    pub fn read_bodies(mut self) -> Self {
        self.reading.bodies = ReadBodies::OfRefusals;
        self
    }

    /// Whether a limit of some rule counts `unit`.
    pub(crate) fn counts(&self, unit: &str) -> bool {
        self.rules.iter().any(|rule| rule.limiter.counts(unit))
    }

    /// The units of the closures.
    pub(crate) fn priced(&self) -> impl Iterator<Item = &str> {
        self.costs.iter().map(|(unit, _)| &**unit)
    }

    /// Notes how the call's own keys stand, for a retry to know; holds no head beyond the deadline. A policy that only
    /// observes has no say in that.
    async fn note_pause(&self, origin: &Origin<'_>, call: &Call) {
        let noted = async {
            for (rule, key) in origin.asked(&self.rules).filter(|(rule, _)| !rule.limiter.only_observes()) {
                if rule.limiter.is_in_order() {
                    call.stands_in_order();
                }
                call.paused(rule.limiter.peek(key).await.paused().unwrap_or_default());
            }
        };
        match call.deadline() {
            Some(deadline) => _ = tokio::time::timeout_at(deadline, noted).await,
            None => noted.await,
        }
    }

    /// Under which key the rule's limiter has the request; `None` if it is not for it.
    fn key<'a>(
        &self,
        rule: &Rule,
        request: &Request,
        service: &Cow<'a, str>,
        stated: Option<&str>,
    ) -> Option<Cow<'a, str>> {
        let key = rule.route.key(request, service)?;
        Some(match (&rule.route, stated, &self.credential) {
            (Route::One(_), ..) | (_, None, None) => key,
            (_, Some(stated), _) => Cow::Owned(stated.to_owned()),
            (_, None, Some(header)) => {
                Cow::Owned(key.into_owned() + &route::credential(request.headers(), header))
            }
        })
    }

    /// What a response needs that may be a fault, or whose body may be: all before it goes further out.
    async fn look_into(
        &self,
        mut attempt: Outgoing<'_>,
        mut signals: Signals,
        mut response: Response,
        call: &Call,
    ) -> Response {
        let landed = self.land(&attempt.origin, &response);
        let mut told = None;
        if self.reading.asks_for_body(&response) {
            // A body may be slow, and its reader gone before its end. A wait that only a service's documentation
            // asks for may be told otherwise there.
            if signals.class() == Class::Throttle && !signals.is_floor() {
                told = signals.wait().inspect(|_| self.tell(&signals, &attempt.origin, &landed));
            }
            (response, signals) = receipt::with_body(response, signals, call.deadline()).await;
        }
        // Told already, only a longer wait is news.
        if told.is_none() || signals.wait() > told {
            self.tell(&signals, &attempt.origin, &landed);
        }
        if signals.class() != Class::None && !attempt.holds.permits().is_empty() {
            self.note_pause(&attempt.origin, call).await;
        }
        attempt.leave(signals, &mut response, call);
        attempt.carry(response, &self.bodies)
    }

    /// One attempt, begun at its first poll.
    async fn send<'a>(
        &'a self,
        request: Request,
        extensions: &'a mut Extensions,
        next: Next<'a>,
        call: impl Deref<Target = Call> + Send + 'a,
    ) -> Result<Response> {
        let options = marker::stated(extensions);
        let mut attempt = self.outgoing(&request, options, Instant::now());
        if let Some(costs) = self.begin(&mut attempt, &request, options, &call) {
            self.acquire(&mut attempt, costs, &call).await?;
        }
        let estimates = attempt.estimates();
        estimates.unless_sent(self.follow(attempt, next.run(request, extensions), call).await)
    }

    /// One attempt that has to ask for its permits.
    async fn wait_and_send<'a>(
        &'a self,
        mut attempt: Outgoing<'a>,
        costs: Costs,
        request: Request,
        extensions: &'a mut Extensions,
        next: Next<'a>,
        call: impl Deref<Target = Call> + Send + 'a,
    ) -> Result<Response> {
        self.acquire(&mut attempt, costs, &call).await?;
        let estimates = attempt.estimates();
        estimates.unless_sent(self.follow(attempt, next.run(request, extensions), call).await)
    }

    /// What is done with the response to an attempt. What few need is apart, so that the future is small.
    #[inline(always)]
    #[allow(clippy::manual_async_fn, reason = "an async fn copies what it is given")]
    fn follow<'a>(
        &'a self,
        mut attempt: Outgoing<'a>,
        sending: BoxFuture<'a>,
        call: impl Deref<Target = Call> + Send + 'a,
    ) -> impl Future<Output = Result<Response>> + Send + 'a {
        async move {
            let looked_into = {
                let mut result = sending.await;
                let Ok(response) = &mut result else {
                    attempt.unless_further_in(&result);
                    return result;
                };
                let signals = receipt::read_as(self.reading.profile, response, attempt.sent);
                attempt.answered(&signals, response);
                if signals.class() == Class::None && !self.reading.asks_for_body(response) {
                    let landed = self.land(&attempt.origin, response);
                    self.tell(&signals, &attempt.origin, &landed);
                    attempt.leave(signals, response, &call);
                    if attempt.rides_on(response) {
                        result = result.map(|response| attempt.carry(response, &self.bodies));
                    }
                    return result;
                }
                Box::pin(self.look_into(attempt, signals, result?, &call))
            };
            Ok(looked_into.await)
        }
    }

    /// The same for a call that goes through no retry.
    async fn run_alone(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
        call: Arc<Call>,
        started: Instant,
    ) -> Result<Response> {
        let attempt = async {
            call.check_time(started)?;
            call.goes();
            // The call was made when this future was, which may be long ago.
            let sending = self.send(request, extensions, next, &*call);
            call.in_time(started, sending).await
        };
        let mut result = Box::pin(attempt).await;
        call.close_only(started, &mut result);
        marker::end(call, extensions);
        result
    }
}

/// As `async_trait` would have it, but for one copy of the request.
impl Middleware for Throttle {
    fn handle<'a, 'b, 'c, 'all>(
        &'a self,
        request: Request,
        extensions: &'b mut Extensions,
        next: Next<'c>,
    ) -> BoxFuture<'all>
    where
        'a: 'all,
        'b: 'all,
        'c: 'all,
        Self: 'all,
    {
        match marker::enter(extensions, Layer::Throttle(&self.limiters)) {
            Some(Inside::Within(within)) => {
                let Some(now) = within.began_now() else {
                    return Box::pin(self.send(request, extensions, next, within));
                };
                // What may go goes before there is a future, which then need not hold the request.
                let options = marker::stated(extensions);
                let mut attempt = self.outgoing(&request, options, now);
                match self.begin(&mut attempt, &request, options, &within) {
                    None if attempt.has_estimates() => {
                        let estimates = attempt.estimates();
                        let follow = self.follow(attempt, next.run(request, extensions), within);
                        Box::pin(async move { estimates.unless_sent(follow.await) })
                    }
                    None => {
                        let sending = next.run(request, extensions);
                        let follow = Box::write(Box::new_uninit(), self.follow(attempt, sending, within));
                        Box::into_pin(follow)
                    }
                    Some(costs) => {
                        Box::pin(self.wait_and_send(attempt, costs, request, extensions, next, within))
                    }
                }
            }
            Some(Inside::Outermost { call, started }) => {
                Box::pin(self.run_alone(request, extensions, next, call, started))
            }
            None => {
                self.repeated.warn(REPEATED);
                next.run(request, extensions)
            }
        }
    }
}

impl std::fmt::Debug for Throttle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limiters: Vec<_> = self.rules.iter().map(|rule| &rule.limiter).collect();
        f.debug_struct("Throttle").field("limiters", &limiters).finish_non_exhaustive()
    }
}
