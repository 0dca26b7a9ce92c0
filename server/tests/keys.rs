//! Whose budget a request draws on, as seen from outside of the layer.

mod support;

use forbear::{Policy, store::Local};
use forbear_server::{Key, LimitLayer, Peer};
use http::Request;
use support::{from, header, service, to, with};
use tower::ServiceExt;

fn five(key: Key) -> LimitLayer {
    LimitLayer::new(Policy::new("address").limit("5/min burst 5"), key, Local::new())
        .build()
        .expect("a layer")
}

async fn admitted(layer: &LimitLayer, requests: impl IntoIterator<Item = Request<()>>) -> usize {
    let mut admitted = 0;
    for request in requests {
        let response = service(layer).oneshot(request).await.expect("an answer");
        assert!(matches!(response.status().as_u16(), 200 | 429), "{}", response.status());
        admitted += usize::from(response.status() == 200);
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn b044_a_caller_cannot_invent_its_address() {
    let rotating = |tail: &'static str| {
        (0..20).map(move |i| {
            let forged = format!("198.51.100.{i}{tail}");
            with("10.0.0.1", &[("x-forwarded-for", forged.as_bytes())])
        })
    };
    assert_eq!(admitted(&five(Key::peer()), rotating("")).await, 5, "peers only, by default");
    assert_eq!(admitted(&five(Key::behind_proxies(1)), rotating(", 203.0.113.9")).await, 5, "one proxy");
    let lines = (0..20).map(|i| {
        let forged = format!("198.51.100.{i}");
        with("10.0.0.1", &[("x-forwarded-for", forged.as_bytes()), ("x-forwarded-for", b"203.0.113.9")])
    });
    assert_eq!(admitted(&five(Key::behind_proxies(1)), lines).await, 5, "a line for each hop");
    let two = rotating(", 203.0.113.9, 10.0.0.2");
    assert_eq!(admitted(&five(Key::behind_proxies(2)), two).await, 5, "two proxies");
    let others = (0..20).map(|i| {
        let real = format!("fake, 203.0.113.{i}");
        with("10.0.0.1", &[("x-forwarded-for", real.as_bytes())])
    });
    assert_eq!(
        admitted(&five(Key::behind_proxies(1)), others).await,
        20,
        "callers behind one proxy stay apart"
    );
}

#[tokio::test(start_paused = true)]
async fn b116_whatever_a_hop_looks_like_its_key_is_an_address() {
    let layer = five(Key::behind_proxies(1));
    let same: [&[u8]; 5] =
        [b"203.0.113.9:4711", b"203.0.113.9", b"203.0.113.9 ,", b"x,203.0.113.9:1", b"::ffff:203.0.113.9"];
    let requests = same.iter().chain(&same).map(|hop| with("10.0.0.1", &[("x-forwarded-for", hop)]));
    assert_eq!(admitted(&layer, requests).await, 5, "one caller in odd spellings");
    let many = "198.51.100.1, ".repeat(499) + "unknown";
    let garbage: [&[u8]; 5] = [b"unknown", b"", b"\xff\xff", many.as_bytes(), b"203.0.113.9, "];
    let requests = garbage[..4].iter().map(|hop| with("10.0.0.7", &[("x-forwarded-for", hop)]));
    assert_eq!(admitted(&layer, requests).await, 4, "the peer's own budget");
    let rest = [from("10.0.0.7"), from("10.0.0.7"), with("10.0.0.8", &[("x-forwarded-for", b"_hidden")])];
    assert_eq!(admitted(&layer, rest).await, 2, "one peer's budget, and another's");
}

#[tokio::test(start_paused = true)]
async fn b056_dual_stack_peers_do_not_share_a_bucket() {
    let one = || Policy::new("address").limit("1/min burst 1");
    let layer = LimitLayer::new(one(), Key::peer(), Local::new()).build().expect("a layer");
    assert_eq!(admitted(&layer, [from("::ffff:192.0.2.1"), from("::ffff:198.51.100.7")]).await, 2);
    assert_eq!(admitted(&layer, [from("192.0.2.1"), from("198.51.100.7")]).await, 0);
    assert_eq!(admitted(&layer, [from("2001:db8::1"), from("2001:db8::ffff:ffff:ffff:ffff")]).await, 1);
    assert_eq!(admitted(&layer, [from("2001:db8:0:1::1")]).await, 1);
}

#[tokio::test(start_paused = true)]
async fn b079_parts_that_a_caller_chooses_make_keys_of_their_own() {
    let one = || Policy::new("tenant").limit("1/min burst 1");
    let layer = LimitLayer::new(one(), Key::header("x-tenant"), Local::new()).build().expect("a layer");
    let long = "x".repeat(4_096);
    let longer = "x".repeat(4_097);
    let values: [&[u8]; 7] = [b"a", b"a:b", b"{a}", b"*", b"\xc3\xa4", long.as_bytes(), longer.as_bytes()];
    let requests = || values.iter().map(|value| with("10.0.0.1", &[("x-tenant", value)]));
    assert_eq!(admitted(&layer, requests()).await, values.len());
    assert_eq!(admitted(&layer, requests()).await, 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_peer_requests_are_answered_500_and_never_let_through() {
    for key in [Key::peer(), Key::behind_proxies(2)] {
        let layer = five(key);
        let response = service(&layer).oneshot(to("/")).await.expect("an answer");
        assert_eq!(response.status(), 500);
        assert_eq!(header(&response, "content-type"), "application/problem+json");
        assert_eq!(header(&response, "retry-after"), "");
    }
    let trial = Policy::new("trial").limit("1/min").observe_only();
    let trial = LimitLayer::new(trial, Key::peer(), Local::new()).build().expect("a layer");
    assert_eq!(admitted(&trial, [to("/"), to("/")]).await, 2, "a trial stops nobody");
    assert_eq!(trial.tallies()[0].not_applied, 2);
    let layer = five(Key::behind_proxies(1));
    let mut told = to("/");
    told.headers_mut().insert("x-forwarded-for", http::HeaderValue::from_static("203.0.113.9"));
    assert_eq!(admitted(&layer, [told]).await, 1, "behind a proxy on a Unix socket");
}

#[tokio::test(start_paused = true)]
async fn extensions_say_who_it_is() {
    let mut by_service = to("/");
    by_service.extensions_mut().insert(Peer([192, 0, 2, 1].into()));
    let mut by_axum = to("/");
    let address = std::net::SocketAddr::from(([192, 0, 2, 1], 80));
    by_axum.extensions_mut().insert(axum::extract::ConnectInfo(address));
    let layer = five(Key::peer());
    let all = [by_service, by_axum, from("192.0.2.1")];
    assert_eq!(admitted(&layer, all.iter().cloned().chain(all.iter().cloned())).await, 5);

    let layer = five(Key::extension::<u64>());
    let user = |id: u64| {
        let mut request = from("192.0.2.1");
        request.extensions_mut().insert(id);
        request
    };
    assert_eq!(admitted(&layer, (0..10).map(|_| user(7))).await, 5);
    assert_eq!(admitted(&layer, [user(8)]).await, 1);
    assert_eq!(admitted(&layer, (0..10).map(|_| from("192.0.2.1"))).await, 10, "the rule is for users");
}
