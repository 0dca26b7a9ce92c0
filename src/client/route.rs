//! Which budget a request belongs to: from a URL, or whatever the user says, to a key.
//!
//! A service must not get two budgets because its name was written in two ways, and no secret may become
//! part of a key. A URL's own normal form does half of that: lower case, IDNs in their ASCII form, no
//! default port, canonical addresses.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName};
use reqwest::{Request, Url};

/// The host that `reqwest` puts into responses that were made by hand, in tests and caches.
const NO_HOST: &str = "no.url.provided.local";

/// Host and port of a URL: what names a service.
///
/// Lower case, an IDN in its ASCII form, no userinfo, no dot at the end, and no port where it is the
/// scheme's own: `http` on 80 and `https` on 443 are one service, the bare host; any other port is part of
/// the name.
pub(crate) fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let host = host.strip_suffix('.').unwrap_or(host);
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Whether a URL's [authority] is this one.
fn is_authority(service: &str, url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.strip_suffix('.').unwrap_or(host);
    match (service.strip_prefix(host), url.port()) {
        (Some(rest), None) => rest.is_empty(),
        (Some(rest), Some(port)) => rest.strip_prefix(':').is_some_and(|rest| rest.parse() == Ok(port)),
        (None, _) => false,
    }
}

/// Whether another service than this one answered, as after a redirect. Not where the response does not say
/// which.
pub(crate) fn is_elsewhere(url: &Url, service: &str) -> bool {
    url.host_str() != Some(NO_HOST) && !is_authority(service, url)
}

/// Whether a response's URL is that of another resource than was asked for, as after a redirect. A query that
/// somebody added on the way makes it no other.
pub(crate) fn is_other(asked: &Url, answered: &Url) -> bool {
    let is_same = asked.host_str() == answered.host_str()
        && asked.port_or_known_default() == answered.port_or_known_default()
        && asked.path() == answered.path();
    !is_same && answered.host_str() != Some(NO_HOST)
}

/// The names of the services that were called first, to borrow: most clients call few.
#[derive(Debug, Default)]
pub(crate) struct Services([OnceLock<Box<str>>; 8]);

impl Services {
    /// The [authority] of a URL.
    pub(crate) fn name(&self, url: &Url) -> Cow<'_, str> {
        for kept in &self.0 {
            // Another thread may have put another service there.
            let name = kept.get_or_init(|| authority(url).into());
            if is_authority(name, url) {
                return Cow::Borrowed(name);
            }
        }
        Cow::Owned(authority(url))
    }
}

/// Which hosts: `api.example.com`, `api.example.com:8443`, or `*.example.com` for all below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPattern {
    /// With the dot in front, if it is the end of a name.
    host: String,
    port: Option<u16>,
    below: Below,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    Only,
    Not,
}

impl HostPattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is not a host, such as api.example.com, api.example.com:8443 or *.example.com")
        };
        let (below, rest) = match text.strip_prefix("*.") {
            Some(rest) => (Below::Only, rest),
            None => (Below::Not, text),
        };
        if rest.is_empty()
            || rest.contains(['/', '@', '*', '?', '#', '\\'])
            || rest.contains(char::is_whitespace)
        {
            return Err(wrong());
        }
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && (!host.contains(':') || host.ends_with(']')) => {
                (host, Some(port.parse().map_err(|_| wrong())?))
            }
            _ => (rest, None),
        };
        let host = Self::normal(host, below).ok_or_else(wrong)?;
        let host = if below == Below::Only { format!(".{host}") } else { host };
        Ok(Self { host, port, below })
    }

    /// A host as a URL would have it; `None` for what no URL's host is ever like, since a limit for that
    /// would hold for nothing.
    fn normal(host: &str, below: Below) -> Option<String> {
        let is_bare_address = host.contains(':') && !host.starts_with('[');
        let url = if is_bare_address { format!("http://[{host}]") } else { format!("http://{host}") };
        let url = Url::parse(&url).ok()?;
        let host = url.host_str()?;
        let Some(name) = url.domain() else {
            return (below == Below::Not).then(|| host.to_owned());
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_name = name.split('.').all(|label| !label.is_empty() && label.bytes().all(is_letter));
        is_name.then(|| name.to_owned())
    }

    pub(crate) fn matches(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let host = host.strip_suffix('.').unwrap_or(host);
        let named = match self.below {
            Below::Only => host.len() > self.host.len() && host.ends_with(&self.host),
            Below::Not => host == self.host,
        };
        named && self.port.is_none_or(|port| url.port_or_known_default() == Some(port))
    }
}

/// A user's own rule. Runs with no lock held.
pub(crate) type KeyOf = Arc<dyn Fn(&Request) -> Option<String> + Send + Sync>;

/// Which requests a limiter is for, and under which key.
pub(crate) enum Route {
    /// All, each service by itself.
    Service,
    /// Those to matching hosts, each service by itself.
    Host(HostPattern),
    /// Those to hosts that none of these match, each service by itself.
    Rest(Vec<HostPattern>),
    /// Those for which the rule gives a key.
    Rule(KeyOf),
    /// All under one key.
    One(&'static str),
}

impl Route {
    /// Whether it is for requests to this URL, each under its service's name.
    #[inline]
    pub(crate) fn is_by_service(&self, url: &Url) -> bool {
        match self {
            Route::Service => true,
            Route::Host(pattern) => pattern.matches(url),
            Route::Rest(others) => !others.iter().any(|other| other.matches(url)),
            Route::Rule(_) | Route::One(_) => false,
        }
    }

    /// The key of a request to that service; `None` if the request is none of its business.
    pub(crate) fn key<'a>(&self, request: &Request, service: &Cow<'a, str>) -> Option<Cow<'a, str>> {
        match self {
            Route::Rule(key) => key(request).map(Cow::Owned),
            Route::One(key) => Some(Cow::Borrowed(key)),
            _ => self.is_by_service(request.url()).then(|| service.clone()),
        }
    }
}

/// What a credential adds to a key: a hash of the header, never the header. Empty where it is missing.
///
/// The hash is not keyed, so that all workers of a fleet built with one toolchain agree.
pub(crate) fn credential(headers: &HeaderMap, name: &HeaderName) -> String {
    let mut values = headers.get_all(name).iter().peekable();
    if values.peek().is_none() {
        return String::new();
    }
    let mut hasher = DefaultHasher::new();
    values.for_each(|value| value.as_bytes().hash(&mut hasher));
    format!("#{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(url: &str) -> String {
        authority(&url.parse().expect("a URL"))
    }

    #[test]
    fn b059_one_service_one_key() {
        for url in [
            "http://API.example.test",
            "http://api.example.test:80/a?key=secret",
            "http://api.example.test./",
            "http://user:pass@api.example.test",
            "https://api.example.test:443",
            "https://Api.Example.Test.:443/",
        ] {
            assert_eq!(service(url), "api.example.test", "{url}");
        }
        assert_eq!(service("https://api.example.test:8443"), "api.example.test:8443");
        assert_eq!(service("https://api.example.test.:8443"), "api.example.test:8443");
        assert_eq!(service("http://api.example.test:443"), "api.example.test:443");
        assert_eq!(service("http://bücher.example"), service("http://xn--bcher-kva.example"));
        assert_eq!(service("http://BÜCHER.example."), "xn--bcher-kva.example");
        assert_eq!(service("http://[::1]:80/"), "[::1]");
        assert_eq!(service("http://[0:0:0:0:0:0:0:1]:8080/"), "[::1]:8080");
        assert_eq!(service("http://127.1/"), "127.0.0.1");
    }

    #[test]
    fn a_kept_name_is_the_authority() {
        let services = Services::default();
        let urls = (0..20).map(|i| format!("http://h{}.test{}/{i}", i / 4, ["", ".", ":80", ":81"][i % 4]));
        let urls = urls.map(|url| url.parse().expect("a URL")).collect::<Vec<Url>>();
        for url in urls.iter().chain(&urls) {
            assert_eq!(services.name(url), authority(url), "{url}");
            assert!(urls.iter().all(|other| is_authority(&authority(url), other) == (authority(url) == authority(other))));
        }
        let [ip, port] = ["http://[::1]", "http://[::1]:81"].map(|url| url.parse().expect("a URL"));
        assert!(!is_authority(&authority(&port), &ip) && !is_authority(&authority(&ip), &port));
    }

    #[test]
    fn patterns() {
        let matches = |pattern: &str, url: &str| {
            HostPattern::parse(pattern).expect("a pattern").matches(&url.parse().expect("a URL"))
        };
        for (pattern, url, wanted) in [
            ("*.example.com", "https://a.example.com", true),
            ("*.example.com", "https://a.b.Example.com.", true),
            ("*.example.com", "https://example.com", false),
            ("*.example.com", "https://badexample.com", false),
            ("*.example.com", "https://example.com.evil.test", false),
            ("API.Example.com.", "https://api.example.com", true),
            ("api.example.com", "https://api.example.com:8443", true),
            ("api.example.com:8443", "https://api.example.com:8443", true),
            ("api.example.com:8443", "https://api.example.com", false),
            ("api.example.com:443", "https://api.example.com", true),
            ("*.bücher.example", "https://a.xn--bcher-kva.example", true),
            ("[::1]", "http://[::1]:80", true),
            ("::1", "http://[::1]:80", true),
            ("[::1]:8080", "http://[::1]:8080", true),
            ("[::ffff:1.2.3.4]", "http://[::ffff:1.2.3.4]", true),
            ("127.1", "http://127.0.0.1", true),
            ("my_host", "http://my_host:8080", true),
        ] {
            assert_eq!(matches(pattern, url), wanted, "{pattern} {url}");
        }
        for wrong in
            ["", "*", "*.", "a.*.com", "https://a.com", "a.com/path", "user@a.com", "a.com:http", "a b.com"]
        {
            assert!(HostPattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_that_no_host_can_match_is_refused() {
        for wrong in [
            "*.[::1]",
            "*.127.0.0.1",
            "[::1",
            "[1.2.3.4]",
            "1.2.3.256",
            ".",
            "..",
            ".example.com",
            "*..com",
            "a.com,b.com",
        ] {
            assert!(HostPattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn credentials_are_hashed() {
        let name = HeaderName::from_static("authorization");
        let key = |token: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(&name, token.parse().expect("a value"));
            credential(&headers, &name)
        };
        assert_eq!(key("Bearer a"), key("Bearer a"));
        assert_ne!(key("Bearer a"), key("Bearer b"));
        assert!(!key("Bearer a").contains("Bearer"));
        assert_eq!(credential(&HeaderMap::new(), &name), "");
    }
}
