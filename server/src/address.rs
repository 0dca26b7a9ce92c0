//! Whose request it is, by network address: the peer of the connection, or the hop that the last trusted
//! proxy reports.
//!
//! Everything here reads what a stranger may have written, so the work is bounded, an address is an address
//! or nothing, and a caller never chooses its own key: only hops that trusted proxies appended count.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::HeaderName;
use http::request::Parts;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// List members of X-Forwarded-For looked at beyond the trusted hops, empty ones included.
const SPARE_MEMBERS: usize = 32;

/// The address of the peer, for servers of which this crate does not know where they put it.
///
/// A service of yours outside of the layer inserts it into the request's extensions. It comes before what
/// a framework has put there, so it can also say better what a framework cannot know.
///
/// ```
/// # use std::net::IpAddr;
/// # let address = IpAddr::from([192, 0, 2, 1]);
/// # let mut request = http::Request::new(());
/// request.extensions_mut().insert(forbear_server::Peer(address));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer(pub IpAddr);

/// The peer, where an extension tells it.
pub(crate) fn peer(parts: &Parts) -> Option<IpAddr> {
    let extensions = &parts.extensions;
    let told = extensions.get::<Peer>().map(|peer| peer.0);
    #[cfg(feature = "axum")]
    let told = told.or_else(|| {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
        let real = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
        real.or_else(|| extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| info.0.ip()))
    });
    told.or_else(|| extensions.get::<SocketAddr>().map(SocketAddr::ip))
}

/// The hop that the outermost of `proxies` trusted proxies saw: that many from the right, over all lines in
/// order. `None` if there is none or it is not an address.
pub(crate) fn forwarded_for(parts: &Parts, proxies: usize) -> Option<IpAddr> {
    let nth = proxies.checked_sub(1)?;
    parts
        .headers
        .get_all(&X_FORWARDED_FOR)
        .iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .take(proxies.saturating_add(SPARE_MEMBERS))
        .map(<[u8]>::trim_ascii)
        // An empty list member is no member (RFC 9110, 5.6.1.2).
        .filter(|member| !member.is_empty())
        .nth(nth)
        .and_then(address)
}

/// An address with or without brackets and port.
fn address(member: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(member).ok()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip());
    }
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// The key of an address: IPv4 as it is, also if it is mapped into IPv6 or a translator in front of an
/// IPv6-only server writes it as one (RFC 6052, 2.1); IPv6 by /64, for that is what one subscriber has at
/// least.
pub(crate) fn key_of(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => match address.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).to_string()
            }
            [a, b, c, d, ..] => format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the header, trusted proxies, and the key.
    type Row<'a> = (&'a [&'a [u8]], usize, Option<&'a str>);

    fn forwarded(lines: &[&[u8]], proxies: usize) -> Option<String> {
        let mut request = http::Request::new(());
        for line in lines {
            let value = http::HeaderValue::from_bytes(line).expect("no line has control bytes");
            request.headers_mut().append("x-forwarded-for", value);
        }
        forwarded_for(&request.into_parts().0, proxies).map(key_of)
    }

    #[test]
    fn b116_odd_spellings_of_a_hop_are_one_key_or_none() {
        let table: [Row<'_>; 22] = [
            (&[b"203.0.113.9"], 1, Some("203.0.113.9")),
            (&[b"203.0.113.9:4711"], 1, Some("203.0.113.9")),
            (&[b"::ffff:203.0.113.9"], 1, Some("203.0.113.9")),
            (&[b"[::ffff:203.0.113.9]:1"], 1, Some("203.0.113.9")),
            (&[b"fake, 203.0.113.9"], 1, Some("203.0.113.9")),
            (&[b"203.0.113.9", b"198.51.100.7"], 1, Some("198.51.100.7")),
            (&[b"203.0.113.9", b"198.51.100.7"], 2, Some("203.0.113.9")),
            (&[b"1.1.1.1, 203.0.113.9", b"198.51.100.7 ,10.0.0.1"], 3, Some("203.0.113.9")),
            (&[b"203.0.113.9,"], 1, Some("203.0.113.9")),
            (&[b"203.0.113.9", b""], 1, Some("203.0.113.9")),
            (&[b" \t203.0.113.9 \t"], 1, Some("203.0.113.9")),
            (&[b"[2001:db8::1]:80"], 1, Some("2001:db8::/64")),
            (&[b"[2001:db8::1]"], 1, Some("2001:db8::/64")),
            (&[b"2001:db8::ffff:1"], 1, Some("2001:db8::/64")),
            (&[b"unknown"], 1, None),
            (&[b"203.0.113.9, unknown"], 1, None),
            (&[b"203.0.113.9, \xff\xfe"], 1, None),
            (&[b"203.0.113.0009"], 1, None),
            (&[b"203.0.113.9"], 2, None),
            (&[b"203.0.113.9"], 0, None),
            (&[b"203.0.113.9"], usize::MAX, None),
            (&[], 1, None),
        ];
        for (lines, proxies, expected) in table {
            assert_eq!(forwarded(lines, proxies).as_deref(), expected, "{lines:?} behind {proxies}");
        }
    }

    #[test]
    fn b116_the_work_is_bounded_and_takes_the_right_hop() {
        let many = "198.51.100.1,".repeat(499) + "203.0.113.9";
        assert_eq!(forwarded(&[many.as_bytes()], 1).as_deref(), Some("203.0.113.9"));
        let commas = "203.0.113.9".to_owned() + &",".repeat(10_000);
        assert_eq!(forwarded(&[commas.as_bytes()], 1), None);
    }
}
