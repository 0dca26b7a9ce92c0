//! Whose answer a response is: that of the service that was asked, or of the one to which a redirect led.
//!
//! What a response says counts for the service that gave it, which also counted a request that nobody asked a permit
//! for. Keys there are found once for each response, for a rule of a user's own is a closure of theirs.

use std::borrow::Cow;

use reqwest::{Response, Url};

use super::Throttle;
use super::outgoing::Origin;
use crate::client::route::Route;
use crate::signals::Signals;

/// The keys where a redirect led, rule by rule; `None` if nowhere else.
pub(super) type Landed = Option<Box<[Option<String>]>>;

impl Throttle {
    /// Where a redirect led; charges it there.
    #[inline]
    pub(super) fn land(&self, origin: &Origin<'_>, response: &Response) -> Landed {
        origin.is_left_for(response.url()).then(|| self.land_elsewhere(origin, response.url()))
    }

    #[cold]
    fn land_elsewhere(&self, origin: &Origin<'_>, url: &Url) -> Box<[Option<String>]> {
        let hop = origin.hop(url);
        let service = self.services.name(hop.url());
        let there = self.rules.iter().map(|rule| match rule.route {
            Route::One(_) => None,
            _ => self.key(rule, &hop, &service, None).map(Cow::into_owned),
        });
        let there = there.collect::<Box<[_]>>();
        for (i, (rule, there)) in self.rules.iter().zip(&there).enumerate() {
            let there = there.as_deref().filter(|there| Some(*there) != origin.key(i));
            if let Some(there) = there.filter(|_| !origin.is_exempt) {
                rule.limiter.charge(there);
            }
        }
        there
    }

    /// Tells the limiters what the response says, each under the key of the service that gave it, or of the one
    /// that led there where no rule is for it; not an overall cap, for one service does not speak for the others.
    pub(super) fn tell(&self, signals: &Signals, origin: &Origin<'_>, landed: &Landed) {
        for (i, rule) in
            self.rules.iter().enumerate().filter(|(_, rule)| !matches!(rule.route, Route::One(_)))
        {
            let there = landed.as_ref().and_then(|landed| landed[i].as_deref());
            if let Some(key) = there.or(origin.key(i)) {
                rule.limiter.observe(key, signals);
            }
        }
    }
}
