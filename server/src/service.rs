//! The service: decides about each request, then passes it on or answers itself.
//!
//! It is always ready, and takes no place of the inner service before a request may go: one that is held by
//! a leaky bucket would otherwise keep others from a service that has room. No lock is held while functions
//! of the user run.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use forbear::{Decision, Limiter, Permit, Refused};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use crate::body::LimitBody;
use crate::headers::{self, Headers};
use crate::key::Found;
use crate::layer::Shared;
use crate::refusal::{self, Refusal};
use crate::rule::{Costs, Rule, add};
use crate::settle::Settle;

/// A service whose callers are limited; made by a [`LimitLayer`](crate::LimitLayer).
///
/// Responds with the inner service's response, or with a refusal; fails only as the inner service does.
#[derive(Debug, Clone)]
pub struct LimitService<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> LimitService<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<S, B, R> Service<Request<B>> for LimitService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: Body<Data = Bytes> + Send,
{
    type Response = Response<LimitBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, shared) = (self.inner.clone(), self.shared.clone());
        Box::pin(async move {
            let (mut head, body) = request.into_parts();
            let admitted = if shared.is_exempt(&head) {
                Admitted::default()
            } else {
                match shared.admit(&head).await {
                    Ok(admitted) => admitted,
                    Err(response) => return Ok(response.map(LimitBody::refused)),
                }
            };
            let bodiless = head.method == Method::HEAD;
            let rides = shared.ride(admitted.permits, &mut head);
            let response = oneshot(inner, Request::from_parts(head, body)).await?;
            let (mut head, body) = response.into_parts();
            if shared.headers == Headers::Always && !admitted.told.is_empty() {
                headers::add_standing(&mut head.headers, &admitted.told, shared.naming);
            }
            // Such a body is never sent, so nobody may come to poll it.
            let bodiless =
                bodiless || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
            Ok(Response::from_parts(head, LimitBody::passed(body, rides.filter(|_| !bodiless))))
        })
    }
}

/// Calls a clone of a service as soon as it is ready.
async fn oneshot<S: Service<Q>, Q>(mut service: S, request: Q) -> Result<S::Response, S::Error> {
    poll_fn(|context| service.poll_ready(context)).await?;
    service.call(request).await
}

/// A request that may go.
#[derive(Default)]
struct Admitted {
    permits: Vec<Permit>,
    /// The decisions of the policies that hold, of which the caller is told.
    told: Vec<Decision>,
}

impl Shared {
    /// Asks all policies that have a key for the request: those that hold together, then those that only
    /// observe.
    async fn admit(&self, head: &Parts) -> Result<Admitted, Response<Bytes>> {
        let mut keyed = Vec::with_capacity(self.rules.len());
        for rule in &self.rules {
            match rule.key.find(head) {
                Found::Key(key) => keyed.push((rule, key, rule.limiter.policy())),
                Found::Nobody => rule.skip(),
                Found::NoPeer => {
                    self.report_no_peer(rule);
                    if !rule.limiter.policy().is_observe_only() {
                        return Err(refusal::fault());
                    }
                    rule.skip();
                }
            }
        }
        let mut costs = Costs::new(&self.costs, head);
        let mut asks = Vec::with_capacity(keyed.len());
        let mut observed = Vec::new();
        for (rule, key, policy) in &keyed {
            let ask = costs.ask(policy, key);
            if policy.is_observe_only() {
                observed.push((*rule, ask));
            } else {
                asks.push((&rule.limiter, ask));
            }
        }
        let granted = match asks.len() {
            0 => Ok(Vec::new()),
            1 => {
                let (limiter, ask) = asks.pop().expect("there is one");
                limiter.acquire(ask).await.map(|permit| vec![permit])
            }
            _ => Limiter::acquire_all(&asks).await,
        };
        let mut permits = granted.map_err(|refused| self.refuse(&refused, head))?;
        let told = permits.iter().map(Permit::decision).collect();
        for (rule, _, policy) in &keyed {
            if !policy.is_observe_only() {
                add(&rule.counts.passed);
            }
        }
        for (rule, ask) in observed {
            add(&rule.counts.passed);
            match rule.limiter.try_acquire(ask).await {
                Ok(permit) if permit.decision().granted() => permits.push(permit),
                Ok(_) | Err(_) => _ = add(&rule.counts.observed),
            }
        }
        Ok(Admitted { permits, told })
    }

    /// What of the permits has to stay until the response has ended. Hands the charges to the service where
    /// a cost was estimated.
    fn ride(&self, permits: Vec<Permit>, head: &mut Parts) -> Option<Arc<[Permit]>> {
        let seats = |permit: &Permit| permit.decision().limits().any(|limit| limit.period().is_none());
        let rides = permits.iter().any(seats);
        if self.costs.is_empty() {
            return rides.then(|| permits.into());
        }
        let outer = head.extensions.remove::<Settle>();
        let permits = Arc::<[Permit]>::from(permits);
        let (settle, rides) = match rides {
            true => (Settle::riding(&permits, outer), Some(permits)),
            false => (Settle::owning(permits, outer), None),
        };
        head.extensions.insert(settle);
        rides
    }

    fn refuse(&self, refused: &Refused, request: &Parts) -> Response<Bytes> {
        let rule = self.rules.iter().find(|rule| rule.limiter.policy().name() == refused.policy());
        if let Some(rule) = rule {
            add(&rule.counts.refused);
        }
        if refusal::status(refused) == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(error = %refused, "a request could not be decided about, and was answered 500");
        }
        let key_class = rule.map_or("", |rule| rule.key.class());
        let refusal = Refusal { refused, request, key_class, naming: self.naming };
        let mut response = match &self.refuse {
            Some(refuse) => refuse(&refusal),
            None => refusal.response(),
        };
        if self.headers != Headers::Never {
            let headers = response.headers_mut();
            headers::add_refusal(headers, refusal.wait(), &refusal.refused_by());
            headers::add_standing(headers, std::slice::from_ref(refused.decision()), self.naming);
        }
        response
    }

    fn report_no_peer(&self, rule: &Rule) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            tracing::error!(
                policy = rule.limiter.policy().name(),
                "the policy limits by peer, and the server does not say who that is, so requests are answered \
                 500, or not counted by a policy that observes. With axum (and the feature `axum`) serve \
                 `app.into_make_service_with_connect_info::<SocketAddr>()`; else insert \
                 `forbear_server::Peer` into the extensions of each request, outside of the limit layer"
            );
        }
    }
}
