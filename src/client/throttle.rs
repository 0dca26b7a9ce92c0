//! The middleware that holds calls back, and lets the service hold them back.
//!
//! Per attempt: acquire a permit, send, read what the response says about limits, tell the limiter, and let
//! the permit ride on the response's body. Place it nearest the wire: what another middleware sends from
//! further in is not seen, and a cache further in consumes budget for its hits. Never sends without a
//! permit, and never runs a user's closure while it holds one.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use http::{Extensions, HeaderMap, HeaderName, Method};
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Middleware, Next, Result};
use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use crate::client::body::{self, Aboard, Bodies, Ride, UNREAD};
use crate::client::call::{Call, Inside, Layer, Once, Place};
use crate::client::receipt::{self, ReadBodies, Reading};
use crate::client::request_ext::{Options, Pass};
use crate::client::route::{self, KeyOf, Route};
use crate::limiter::{Ask, Limiter, Permit, Refused, RefusedKind};
use crate::signals::{Class, Profile, Signals};

type CostOf = Box<dyn Fn(&Request) -> u64 + Send + Sync>;
type Exempt = Box<dyn Fn(&Request) -> bool + Send + Sync>;

const REPEATED: &str = "a second throttle of one limiter around a call does nothing; install it once";
const LYING: &str =
    "response bodies lie unread and hold their seats while other calls wait; read or drop them";
const LYING_HINT: &str = "response bodies lie unread and hold their seats; read or drop them";

/// Holds each request to the limits of a [`Limiter`], one budget for each service.
///
/// A seat is held until the response's body has ended or was dropped (a websocket gives it back when the
/// connection is upgraded). Answers to HEAD, 204, 304 and empty bodies give it back at once.
///
/// What a middleware cannot see: default headers and cookies of the `reqwest::Client`, the hops of a
/// redirect (what the last response says counts for the service that gave it, and a redirect to another
/// service is charged there afterwards), and that `reqwest` itself sends a refused HTTP/2 stream again.
///
/// In a chain: caches first, then [`Retry`](crate::Retry), then throttles, an overall cap last.
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
    credential: Option<HeaderName>,
    costs: Vec<(String, CostOf)>,
    exempt: Option<Exempt>,
    reading: Reading,
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
            credential: None,
            costs: Vec::new(),
            exempt: None,
            reading: Reading { profile: Profile::Generic, bodies: ReadBodies::Never },
            bodies: Bodies::default(),
            repeated: Once::default(),
            lying: Once::default(),
        }
    }

    /// One limiter more, decided together with those before it.
    pub(crate) fn limiter(mut self, route: Route, limiter: Limiter) -> Self {
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

    /// The costs that the request states, and of the closures' those that it does not.
    fn costs(&self, request: &Request, options: &Options) -> Costs {
        let mut costs = options.costs.clone();
        for (unit, cost) in &self.costs {
            if !costs.iter().any(|(stated, _)| stated == unit) {
                costs.push((unit.clone(), cost(request)));
            }
        }
        costs
    }

    /// What is asked of one rule's limiter: its own units, and those that nobody counts, for it to refuse.
    fn ask<'a>(&self, rule: &Rule, key: &'a str, costs: &'a Costs, may_wait: Duration) -> Ask<'a> {
        let ours = costs.iter().filter(|(unit, _)| rule.limiter.counts(unit) || !self.counts(unit));
        ours.fold(Ask::new(key).max_wait(may_wait), |ask, (unit, cost)| ask.cost(unit, *cost))
    }

    /// Waits for a permit of each limiter, within what is left of the call's time.
    async fn acquire(&self, origin: &Origin, costs: &Costs, call: &Call) -> Result<Permits> {
        let since = Instant::now();
        call.asks();
        origin.asked(&self.rules).for_each(|(rule, _)| call.bound_wait(rule.limiter.max_wait()));
        let mut may_wait = call.wait_left(Duration::MAX);
        if let Some(deadline) = call.deadline() {
            may_wait = may_wait.min(deadline.saturating_duration_since(since));
        }
        let asks: SmallVec<[_; 1]> = origin
            .asked(&self.rules)
            .map(|(rule, key)| (&rule.limiter, self.ask(rule, key, costs, may_wait)))
            .collect();
        let acquire = async {
            match &asks[..] {
                [(limiter, ask)] => Ok(smallvec![limiter.acquire(ask.clone()).await?]),
                // Apart like all that few calls need, so that the future of the others is small.
                asks => Box::pin(Limiter::acquire_all(asks)).await.map(Permits::from),
            }
        };
        let mut acquire = pin!(acquire);
        // Most calls go at once, and need no timer.
        let first = std::future::poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context))).await;
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let answer = Box::pin(self.queue(origin, acquire)).await;
                let waited = since.elapsed();
                call.queued(waited);
                tracing::debug!(service = origin.service, ?waited, "was held back by a limit");
                answer
            }
        };
        answer.map_err(|refused| self.explain(refused, origin).into_error())
    }

    /// Stays in the queue, and looks now and then whether it waits for someone's unread body.
    async fn queue<T>(&self, origin: &Origin, mut acquire: Pin<&mut impl Future<Output = T>>) -> T {
        loop {
            match tokio::time::timeout(UNREAD, acquire.as_mut()).await {
                Ok(answer) => return answer,
                Err(_) if self.bodies.lie_unread(&origin.service) => self.lying.warn(LYING),
                Err(_) => {}
            }
        }
    }

    fn explain(&self, refused: Refused, origin: &Origin) -> Refused {
        let waits_for_seat = matches!(refused.kind(), RefusedKind::NoSeat | RefusedKind::QueueFull);
        if waits_for_seat && self.bodies.lie_unread(&origin.service) {
            self.lying.warn(LYING);
            return refused.hint(LYING_HINT);
        }
        refused
    }

    /// Tells the limiters what the response says, each under the key of the service that gave it; an overall
    /// cap is not told, for one service does not speak for the others.
    fn observe(&self, response: &Response, signals: &Signals, origin: &Origin) {
        let landed = origin.landed(response.url());
        let services = self.rules.iter().zip(&origin.keys);
        for (rule, key) in services.filter(|(rule, _)| !matches!(rule.route, Route::One(_))) {
            let there = landed.as_ref().and_then(|hop| self.key(rule, hop, None));
            if let Some(there) = there.as_ref().filter(|there| Some(*there) != key.as_ref()) {
                rule.limiter.charge(there);
            }
            if let Some(key) = there.as_ref().or(key.as_ref()) {
                rule.limiter.observe(key, signals);
            }
        }
    }

    /// Notes how long the call's own keys are paused, so that a retry knows before it lets a response go.
    async fn note_pause(&self, origin: &Origin, call: &Call) {
        for (rule, key) in origin.asked(&self.rules) {
            call.paused(rule.limiter.peek(key).await.paused().unwrap_or_default());
        }
    }

    /// Under which key the rule's limiter has the request; `None` if it is not for it.
    fn key(&self, rule: &Rule, request: &Request, stated: Option<&str>) -> Option<String> {
        let key = rule.route.key(request)?;
        Some(match (&rule.route, stated, &self.credential) {
            (Route::One(_), ..) | (_, None, None) => key,
            (_, Some(stated), _) => stated.to_owned(),
            (_, None, Some(header)) => key + &route::credential(request.headers(), header),
        })
    }

    async fn run(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
        call: &Call,
    ) -> Result<Response> {
        let options = Options::of(extensions);
        let exempt =
            options.pass == Pass::Exempt || self.exempt.as_ref().is_some_and(|exempt| exempt(&request));
        let origin = self.origin(&request, &options);
        let mut aboard = None;
        let settle = options.settle.clone().unwrap_or_default();
        if !exempt && origin.keys.iter().any(Option::is_some) {
            let costs = self.costs(&request, &options);
            let permits = self.acquire(&origin, &costs, call).await?;
            let ride = Ride::new(permits, &origin.service);
            if !costs.is_empty() {
                settle.add(ride.clone());
            }
            aboard = Some(Aboard(ride));
            call.goes();
        }
        let sent = Instant::now();
        let response = next.run(request, extensions).await?;
        let (mut response, signals) = receipt::read_as(self.reading, response, sent).await;
        self.observe(&response, &signals, &origin);
        if signals.class() != Class::None && aboard.is_some() {
            Box::pin(self.note_pause(&origin, call)).await;
        }
        if !settle.is_empty() {
            settle.join(response.extensions_mut());
        }
        Ok(match aboard {
            Some(aboard) => body::carry(response, &origin.method, aboard, &self.bodies),
            None => response,
        })
    }

    fn origin(&self, request: &Request, options: &Options) -> Origin {
        let stated = options.key.as_deref();
        let headers_matter =
            self.credential.is_some() || self.rules.iter().any(|rule| matches!(rule.route, Route::Rule(_)));
        Origin {
            keys: self.rules.iter().map(|rule| self.key(rule, request, stated)).collect(),
            service: route::authority(request.url()),
            method: request.method().clone(),
            headers: if headers_matter { request.headers().clone() } else { HeaderMap::new() },
            follows: stated.is_none(),
        }
    }
}

type Permits = SmallVec<[Permit; 1]>;
type Costs = SmallVec<[(String, u64); 2]>;

/// What must be known of a request after it was sent.
struct Origin {
    /// Rule by rule.
    keys: SmallVec<[Option<String>; 1]>,
    service: String,
    method: Method,
    /// Only where a key depends on them.
    headers: HeaderMap,
    /// Whether keys follow redirects: not one that the request states.
    follows: bool,
}

impl Origin {
    /// The rules that are for the request, each with its key.
    fn asked<'a>(&'a self, rules: &'a [Rule]) -> impl Iterator<Item = (&'a Rule, &'a str)> {
        rules.iter().zip(&self.keys).filter_map(|(rule, key)| Some((rule, key.as_deref()?)))
    }

    /// The request that was sent last, if a redirect went to another service.
    fn landed(&self, url: &Url) -> Option<Request> {
        if !self.follows || route::answered_by(url)? == self.service {
            return None;
        }
        let mut hop = Request::new(self.method.clone(), url.clone());
        *hop.headers_mut() = self.headers.clone();
        Some(hop)
    }
}

#[async_trait]
impl Middleware for Throttle {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let limiters = self.rules.iter().map(|rule| rule.limiter.clone()).collect();
        let Some(inside) = Inside::enter(extensions, Layer::Throttle(limiters)) else {
            self.repeated.warn(REPEATED);
            return next.run(request, extensions).await;
        };
        let call = &*inside.call;
        let running = pin!(self.run(request, extensions, next, call));
        match inside.place {
            Place::Within => running.await,
            Place::Outermost => call.close_only(call.in_time(running).await),
        }
    }
}

impl std::fmt::Debug for Throttle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limiters: Vec<_> = self.rules.iter().map(|rule| &rule.limiter).collect();
        f.debug_struct("Throttle").field("limiters", &limiters).finish_non_exhaustive()
    }
}
