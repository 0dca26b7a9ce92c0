//! Whose budget a request draws on.
//!
//! A [`Key`] is found in the head of a request, by value: no key means that the rule does not apply to the
//! request. Where an address is asked for and there is none, the server is set up wrongly, and that is an
//! error and not "no limit". A key is never put into a log line, a header or an answer.

use std::fmt;
use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;

use crate::address;

/// Longer keys are kept as a digest, so that nobody fills the memory with long ones.
const LONGEST: usize = 128;

/// What came of looking for a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Key(String),
    /// The rule does not apply.
    Nobody,
    /// The server does not say who its peer is.
    NoPeer,
}

type Find = dyn Fn(&Parts) -> Found + Send + Sync;

/// Whose budget a request draws on: found in its head, or not, and then the rule does not apply.
///
/// Cheap to clone.
#[derive(Clone)]
pub struct Key {
    class: &'static str,
    find: Arc<Find>,
    fault: Option<String>,
}

impl Key {
    fn new(class: &'static str, find: impl Fn(&Parts) -> Found + Send + Sync + 'static) -> Self {
        Self { class, find: Arc::new(find), fault: None }
    }

    /// The address of the connection's peer: IPv4 by address, also where it is mapped or translated into
    /// IPv6; IPv6 by /64.
    /// Headers are not looked at; behind a proxy, where every peer is the proxy, use
    /// [`behind_proxies`](Self::behind_proxies).
    ///
    /// The address is looked for in the request's extensions, in this order: [`Peer`](crate::Peer); axum's
    /// `ConnectInfo<SocketAddr>`, which `into_make_service_with_connect_info::<SocketAddr>()` puts there, and
    /// `MockConnectInfo<SocketAddr>` (both with the feature `axum`, which is on by default);
    /// [`SocketAddr`](std::net::SocketAddr). Without any of them requests are answered 500, unless the policy
    /// only observes, and one line at error level says what to do.
    pub fn peer() -> Self {
        Self::new("peer", by_peer)
    }

    /// The caller's address as `proxies` trusted proxies in front of this server tell it: that many members
    /// from the right of `X-Forwarded-For`, all lines taken together, each proxy having appended its peer.
    /// What stands further left was written by the caller and is never looked at.
    ///
    /// With 0 proxies it is [`peer`](Self::peer). Where there are fewer members, or the member is not an
    /// address, it is the peer too. Ports and brackets are stripped, addresses grouped as for `peer`.
    pub fn behind_proxies(proxies: usize) -> Self {
        Self::new("address", move |parts| match address::forwarded_for(parts, proxies) {
            Some(address) => Found::Key(address::key_of(address)),
            None => by_peer(parts),
        })
    }

    /// What authentication has found and put into the request's extensions, as text. Without such an
    /// extension the rule does not apply, so anonymous requests need a rule of their own, and the layer that
    /// authenticates has to be outside of this one: a `warn` says so once, if a thousand requests came and
    /// none had it.
    pub fn extension<T: fmt::Display + Send + Sync + 'static>() -> Self {
        Self::new("extension", |parts| match parts.extensions.get::<T>() {
            Some(value) => Found::Key(value.to_string()),
            None => Found::Nobody,
        })
    }

    /// The value of a request header, the first if there are several. Only behind something that has
    /// checked the value: a caller who may choose it takes a fresh budget with each request, and one who
    /// leaves it out or empty is not limited by this rule at all.
    pub fn header(name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        match HeaderName::try_from(name) {
            Ok(name) => Self::new("header", move |parts| match parts.headers.get(&name) {
                Some(value) if !value.is_empty() => Found::Key(value.as_bytes().escape_ascii().to_string()),
                _ => Found::Nobody,
            }),
            Err(_) => {
                let fault = format!("`{}` is not the name of a header", name.escape_debug());
                Self { fault: Some(fault), ..Self::new("header", |_| Found::Nobody) }
            }
        }
    }

    /// Anything else that a request's head tells. `None`: the rule does not apply to the request. Parts of a
    /// composite key need a separator that cannot stand in them.
    ///
    /// ```
    /// # use forbear_server::Key;
    /// let by_tenant = Key::from_fn(|head| {
    ///     let mut segments = head.uri.path().split('/').skip(1);
    ///     (segments.next() == Some("tenants")).then(|| segments.next().map(str::to_owned))?
    /// });
    /// ```
    pub fn from_fn(find: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::new("function", move |parts| find(parts).map_or(Found::Nobody, Found::Key))
    }

    /// One budget for all requests together.
    pub fn everyone() -> Self {
        Self::new("everyone", |_| Found::Key("everyone".to_owned()))
    }

    /// What kind of key it is: `peer`, `address`, `extension`, `header`, `function` or `everyone`.
    pub fn class(&self) -> &'static str {
        self.class
    }

    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    pub(crate) fn find(&self, parts: &Parts) -> Found {
        match (self.find)(parts) {
            Found::Key(key) if key.len() > LONGEST => Found::Key(digest(&key)),
            found => found,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("class", &self.class).finish_non_exhaustive()
    }
}

fn by_peer(parts: &Parts) -> Found {
    address::peer(parts).map_or(Found::NoPeer, |address| Found::Key(address::key_of(address)))
}

/// FNV-1a of 128 bits and the length: the same in every process of a fleet. Two long keys that are made to
/// meet only share a budget.
fn digest(key: &str) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = key.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{hash:032x}+{}", key.len())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn head(peer: &str) -> Parts {
        let mut request = http::Request::new(());
        request.extensions_mut().insert(peer.parse::<SocketAddr>().expect("a socket address"));
        request.into_parts().0
    }

    fn found(key: &str) -> Found {
        Found::Key(key.to_owned())
    }

    #[test]
    fn b056_a_mapped_address_is_the_address_itself() {
        assert_eq!(Key::peer().find(&head("[::ffff:192.0.2.1]:1")), found("192.0.2.1"));
        assert_eq!(Key::peer().find(&head("192.0.2.1:2")), found("192.0.2.1"));
        assert_eq!(Key::peer().find(&head("[::ffff:198.51.100.7]:1")), found("198.51.100.7"));
        assert_eq!(Key::peer().find(&head("[64:ff9b::192.0.2.1]:1")), found("192.0.2.1"));
        assert_eq!(Key::peer().find(&head("[64:ff9b::198.51.100.7]:1")), found("198.51.100.7"));
        assert_eq!(Key::peer().find(&head("[64:ff9b:1::192.0.2.1]:1")), found("64:ff9b:1::/64"));
        assert_eq!(Key::peer().find(&head("[2001:db8:1:2:3::4]:1")), found("2001:db8:1:2::/64"));
        assert_eq!(Key::peer().find(&head("[2001:db8:1:3::]:1")), found("2001:db8:1:3::/64"));
    }

    #[test]
    fn a_peer_that_nobody_tells_is_an_error_and_anything_else_is_nobody() {
        let head = http::Request::new(()).into_parts().0;
        assert_eq!(Key::peer().find(&head), Found::NoPeer);
        assert_eq!(Key::behind_proxies(1).find(&head), Found::NoPeer);
        assert_eq!(Key::extension::<String>().find(&head), Found::Nobody);
        assert_eq!(Key::header("x-user").find(&head), Found::Nobody);
        assert_eq!(Key::from_fn(|_| None).find(&head), Found::Nobody);
    }

    #[test]
    fn b079_keys_of_any_length_stay_apart_and_short() {
        let key = |n: usize, last: char| {
            let text = "a".repeat(n) + &last.to_string();
            Key::from_fn(move |_| Some(text.clone())).find(&http::Request::new(()).into_parts().0)
        };
        assert_ne!(key(4_096, 'x'), key(4_096, 'y'));
        assert_ne!(key(4_096, 'x'), key(4_097, 'x'));
        let Found::Key(long) = key(100_000, 'x') else { panic!("a key was given") };
        assert!(long.len() <= LONGEST, "{long}");
    }

    #[test]
    fn bytes_of_a_header_stay_apart() {
        let key = |bytes: &[u8]| {
            let mut request = http::Request::new(());
            let value = http::HeaderValue::from_bytes(bytes).expect("no control bytes");
            request.headers_mut().insert("x-user", value);
            Key::header("X-User").find(&request.into_parts().0)
        };
        assert_ne!(key(b"\xff"), key(b"\\xff"));
        assert_ne!(key(b"\xff"), key(b"\xfe"));
        assert_eq!(key(b""), Found::Nobody);
        assert!(Key::header("no spaces").fault().is_some());
    }
}
