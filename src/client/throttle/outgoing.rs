//! An attempt on its way out: whose budgets it is for, what it costs, and the permits that let it go.
//!
//! Most attempts go at once, and take nothing from the allocator for it. What has to wait, or is for several
//! limiters to decide together, is apart. Never sends anything.

use std::borrow::Cow;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{HeaderMap, Method, header};
use reqwest::{Request, Response, Url};
use reqwest_middleware::Result;
use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::{Rule, Throttle};
use crate::client::Settle;
use crate::client::attempts::ErrorKind;
use crate::client::body::{self, Aboard, Bodies, Holds, Permits, Ride, UNREAD};
use crate::client::call::Call;
use crate::client::classify;
use crate::client::receipt;
use crate::client::request_ext::{Options, Pass};
use crate::client::route::{self, Route};
use crate::clock::at_us;
use crate::limiter::{Ask, Limiter, Permit, Refused, RefusedKind};
use crate::signals::{Class, Signals};

const LYING: &str =
    "response bodies lie unread and hold their seats while other calls wait; read or drop them";
const LYING_HINT: &str = "response bodies lie unread and hold their seats; read or drop them";

type Keys<'a> = Box<[Option<Cow<'a, str>>]>;

pub(super) type Costs = SmallVec<[(String, u64); 2]>;

/// An attempt on its way.
pub(super) struct Outgoing<'a> {
    pub(super) origin: Origin<'a>,
    pub(super) settle: Option<Settle>,
    pub(super) holds: Holds,
    pub(super) sent: Instant,
    /// Whether a throttle further out has let it go, whose units may be stated too.
    is_further_in: bool,
}

impl Outgoing<'_> {
    /// It has its permits.
    #[inline(always)]
    fn goes(&mut self, permits: Permits, costs: &Costs, call: &Call) {
        call.let_go();
        self.holds = if costs.is_empty() {
            Holds::Permits(permits)
        } else {
            let ride = Ride::new(permits, &self.origin.service);
            self.settle.get_or_insert_with(Settle::new).add(ride.clone());
            Holds::Ride(Aboard(ride))
        };
    }

    /// Whether something of what it was charged is an estimate.
    #[inline]
    pub(super) fn has_estimates(&self) -> bool {
        matches!(self.holds, Holds::Ride(_))
    }

    pub(super) fn estimates(&self) -> Estimates {
        Estimates(match &self.holds {
            Holds::Ride(aboard) => Some(aboard.0.clone()),
            Holds::Permits(_) => None,
        })
    }

    /// Leaves in the response what was read in it, the record of the call so far, and the handle to settle.
    #[inline]
    pub(super) fn leave(&mut self, signals: Signals, response: &mut Response, call: &Call) {
        receipt::leave(signals, response);
        call.leave(response);
        if let Some(settle) = self.settle.take().filter(|settle| !settle.is_empty()) {
            settle.join(response.extensions_mut());
        }
    }

    /// A call that a limiter further in refused was never sent: nothing of it was used.
    pub(super) fn unless_further_in(&self, result: &Result<Response>) {
        if let Err(error) = result
            && Refused::of(error).is_some_and(|refused| refused.last().is_none())
        {
            self.holds.permits().iter().for_each(Permit::undo);
        }
    }

    /// Tells the limits that count by what the service has seen. What stands between may answer in its place: a
    /// gateway, or a cache.
    #[inline]
    pub(super) fn answered(&self, signals: &Signals, response: &Response) {
        let told = || self.holds.permits().iter().filter(|permit| permit.is_told_of_answers());
        if told().next().is_none() {
            return;
        }
        let is_from_between =
            response.status().is_server_error() || response.headers().contains_key(header::AGE);
        match signals.class() {
            Class::Throttle => told().for_each(Permit::declined),
            Class::None if !is_from_between => {
                let (sent, by) = (at_us(self.sent), at_us(Instant::now()));
                told().for_each(|permit| permit.arrived(sent, by));
            }
            _ => {}
        }
    }

    /// Whether the permits are to ride on the response's body.
    #[inline]
    pub(super) fn rides_on(&self, response: &Response) -> bool {
        !self.origin.is_head && self.holds.ride_on(response)
    }

    /// The response, with what rides on it.
    pub(super) fn carry(self, response: Response, bodies: &Bodies) -> Response {
        if self.rides_on(&response) {
            body::carry(response, self.holds, &self.origin.service, bodies)
        } else {
            response
        }
    }
}

/// What an attempt was charged by estimate.
pub(super) struct Estimates(Option<Arc<Ride>>);

impl Estimates {
    /// A request that never reached the service used nothing of them. It still counts as one: others that cannot
    /// connect either are paced by that.
    pub(super) fn unless_sent(self, result: Result<Response>) -> Result<Response> {
        if let (Some(ride), Err(error)) = (self.0, &result)
            && classify::error_kind(error) == ErrorKind::Connect
        {
            ride.unspent();
        }
        result
    }
}

/// What must be known of a request after it was sent.
pub(super) struct Origin<'a> {
    pub(super) service: Cow<'a, str>,
    /// Rule by rule. `None` where each has the service's name, as of most calls.
    keys: Option<Keys<'a>>,
    is_head: bool,
    /// Method and headers, only where a key depends on them.
    head: Option<Box<(Method, HeaderMap)>>,
    /// Whether keys follow redirects: not one that the request states.
    follows: bool,
    /// Whether no limit holds for it.
    pub(super) is_exempt: bool,
}

impl<'a> Origin<'a> {
    /// The rules that are for the request, each with its key.
    pub(super) fn asked<'o>(&'o self, rules: &'o [Rule]) -> impl Iterator<Item = (&'o Rule, &'o str)> {
        let rules = if self.is_exempt { &[] } else { rules };
        rules.iter().enumerate().filter_map(|(i, rule)| Some((rule, self.key(i)?)))
    }

    /// The key under the rule of this number, if that is for the request.
    #[inline]
    pub(super) fn key(&self, rule: usize) -> Option<&str> {
        match &self.keys {
            None => Some(&self.service),
            Some(keys) => keys[rule].as_deref(),
        }
    }

    /// Whether a redirect went to another service, whose keys are then meant.
    #[inline]
    pub(super) fn is_left_for(&self, url: &Url) -> bool {
        self.follows && route::is_elsewhere(url, &self.service)
    }

    /// The request that was sent last, after a redirect.
    pub(super) fn hop(&self, url: &Url) -> Request {
        let mut hop = Request::new(Method::GET, url.clone());
        if let Some(head) = &self.head {
            (*hop.method_mut(), *hop.headers_mut()) = (**head).clone();
            // As reqwest leaves them out of what it sends to another host.
            for secret in [header::AUTHORIZATION, header::COOKIE, header::PROXY_AUTHORIZATION] {
                hop.headers_mut().remove(secret);
            }
        }
        hop
    }
}

impl Throttle {
    /// An attempt that has not begun.
    #[inline(always)]
    pub(super) fn outgoing(
        &self,
        request: &Request,
        options: Option<&Options>,
        sent: Instant,
    ) -> Outgoing<'_> {
        let stated = options.and_then(|options| options.key.as_deref());
        let is_exempt = options.is_some_and(|options| options.pass == Pass::Exempt)
            || self.exempt.as_ref().is_some_and(|exempt| exempt(request));
        let service = self.services.name(request.url());
        let by_service = |rule: &Rule| rule.route.is_by_service(request.url());
        let (keys, head) =
            if stated.is_none() && self.credential.is_none() && self.rules.iter().all(by_service) {
                (None, None)
            } else {
                (Some(self.keys(request, &service, stated)), self.head(request))
            };
        let origin = Origin {
            keys,
            is_head: request.method() == Method::HEAD,
            head,
            follows: stated.is_none(),
            is_exempt,
            service,
        };
        let settle = options.and_then(|options| options.settle.clone());
        Outgoing { origin, settle, holds: Holds::Permits(Permits::new()), sent, is_further_in: false }
    }

    /// The key of the request under each rule.
    fn keys<'a>(&self, request: &Request, service: &Cow<'a, str>, stated: Option<&str>) -> Keys<'a> {
        self.rules.iter().map(|rule| self.key(rule, request, service, stated)).collect()
    }

    /// What keys depend on beside the URL, if they do.
    fn head(&self, request: &Request) -> Option<Box<(Method, HeaderMap)>> {
        let matters = self.credential.is_some() || self.has_closure_rule();
        matters.then(|| Box::new((request.method().clone(), request.headers().clone())))
    }

    fn has_closure_rule(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.route, Route::Rule(_)))
    }

    /// Takes the attempt as far as it goes without a wait. The costs of one that has to ask for its permits.
    #[inline(always)]
    pub(super) fn begin(
        &self,
        attempt: &mut Outgoing<'_>,
        request: &Request,
        options: Option<&Options>,
        call: &Call,
    ) -> Option<Costs> {
        let (rule, key, are_several) = {
            let mut asked = attempt.origin.asked(&self.rules);
            let (rule, key) = asked.next()?;
            (rule, key, asked.next().is_some())
        };
        call.asks();
        attempt.is_further_in = call.is_let_go();
        self.bound_wait(&attempt.origin, call);
        let mut costs = Costs::new();
        self.add_costs(&mut costs, request, options);
        if self.runs_closures() {
            // They may have taken their time.
            attempt.sent = Instant::now();
        }
        if are_several {
            return Some(costs);
        }
        let permit = {
            let ask = self.ask(rule, key, &costs, attempt.is_further_in);
            rule.limiter.grant(&ask, Some(at_us(attempt.sent)))
        };
        let Some(permit) = permit else { return Some(costs) };
        let permits = smallvec![permit];
        attempt.goes(permits, &costs, call);
        None
    }

    fn runs_closures(&self) -> bool {
        !self.costs.is_empty() || self.exempt.is_some() || self.has_closure_rule()
    }

    /// The costs that the request states, and of the closures' those that it does not.
    #[inline(always)]
    fn add_costs(&self, costs: &mut Costs, request: &Request, options: Option<&Options>) {
        if let Some(options) = options {
            costs.extend(options.costs.iter().cloned());
        }
        for (unit, cost) in &self.costs {
            if !costs.iter().any(|(stated, _)| stated == unit) {
                costs.push((unit.clone(), cost(request)));
            }
        }
    }

    /// What is asked of one rule's limiter: its own units, and those that nobody counts, for it to refuse; a throttle
    /// further out has done that.
    #[inline(always)]
    fn ask<'a>(&self, rule: &Rule, key: &'a str, costs: &'a Costs, is_further_in: bool) -> Ask<'a> {
        let is_unknown = |unit: &str| !is_further_in && !self.counts(unit);
        let ours = costs.iter().filter(|(unit, _)| rule.limiter.counts(unit) || is_unknown(unit));
        ours.fold(Ask::new(key), |ask, (unit, cost)| ask.cost(unit, *cost))
    }

    /// Holds the call to the policies' `max_wait`, whatever waits: a queue here or further in, or a retry.
    #[inline]
    fn bound_wait(&self, origin: &Origin<'_>, call: &Call) {
        let stated = origin.asked(&self.rules).filter_map(|(rule, _)| rule.limiter.max_wait());
        stated.for_each(|max_wait| call.bound_wait(max_wait));
    }

    /// Waits for a permit of each limiter, within what is left of the call's time.
    pub(super) async fn acquire(&self, attempt: &mut Outgoing<'_>, costs: Costs, call: &Call) -> Result<()> {
        let permits = self.permits(attempt, &costs, call).await?;
        // What became known between its slot and its wake, it could not know.
        let due = permits.iter().filter_map(Permit::due).max();
        attempt.sent = due.into_iter().fold(Instant::now(), Instant::min);
        attempt.goes(permits, &costs, call);
        Ok(())
    }

    async fn permits(&self, attempt: &Outgoing<'_>, costs: &Costs, call: &Call) -> Result<Permits> {
        let (origin, is_further_in) = (&attempt.origin, attempt.is_further_in);
        let since = Instant::now();
        let mut may_wait = call.wait_left(Duration::MAX);
        if let Some(deadline) = call.deadline() {
            may_wait = may_wait.min(deadline.saturating_duration_since(since));
        }
        let asks: SmallVec<[_; 1]> = origin
            .asked(&self.rules)
            .map(|(rule, key)| (&rule.limiter, self.ask(rule, key, costs, is_further_in).max_wait(may_wait)))
            .collect();
        let acquire = async {
            match &asks[..] {
                [(limiter, ask)] => Ok(smallvec![limiter.acquire(ask.clone()).await?]),
                asks => Limiter::acquire_all(asks).await.map(Permits::from),
            }
        };
        let mut acquire = pin!(acquire);
        // Most are answered at once, and need no timer.
        let first = std::future::poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context))).await;
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let _noted = call.waits(since, None);
                let answer = self.queue(origin, acquire).await;
                tracing::debug!(service = &*origin.service, waited = ?since.elapsed(), "was held back by a limit");
                answer
            }
        };
        answer.map_err(|refused| self.explain(refused, origin).into_error())
    }

    /// Stays in the queue, and looks now and then whether it waits for someone's unread body.
    async fn queue<T>(&self, origin: &Origin<'_>, mut acquire: Pin<&mut impl Future<Output = T>>) -> T {
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
}
