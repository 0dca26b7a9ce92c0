//! tonic behind the layer: a refusal as a gRPC status that tells when to come back.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use forbear::{Policy, store::Local};
use forbear_server::{Key, LimitLayer, Peer};
use tokio::net::TcpListener;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::{ErrorDetails, StatusExt};
use tower::util::MapRequestLayer;

fn exhausted(refusal: &forbear_server::Refusal<'_>) -> http::Response<Bytes> {
    let text = format!("limit `{}` is used up", refusal.limit().unwrap_or("none"));
    let details = ErrorDetails::with_retry_info(refusal.wait());
    Status::with_error_details(Code::ResourceExhausted, text, details).into_http()
}

async fn serve() -> SocketAddr {
    let layer = LimitLayer::new(Policy::new("address").limit("2/min burst 2"), Key::peer(), Local::new())
        .refusal(exhausted)
        .build()
        .expect("a layer");
    // tonic keeps the address in an extension of its own.
    let peer = MapRequestLayer::new(|mut request: http::Request<tonic::body::Body>| {
        if let Some(address) =
            request.extensions().get::<TcpConnectInfo>().and_then(|info| info.remote_addr())
        {
            request.extensions_mut().insert(Peer(address.ip()));
        }
        request
    });
    let (_, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let server = Server::builder().layer(peer).layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

#[tokio::test]
async fn a_refusal_can_be_a_grpc_status_with_retry_info() {
    let address = serve().await;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let mut client = HealthClient::new(endpoint.connect().await.expect("it listens"));
    let mut check = async || client.check(HealthCheckRequest::default()).await;
    for _ in 0..2 {
        let answer = check().await.expect("it goes");
        assert!(answer.metadata().contains_key("ratelimit"));
    }
    let status = check().await.expect_err("it is refused");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "limit `requests/min` is used up");
    let retry = status.get_error_details().retry_info().and_then(|info| info.retry_delay).expect("a delay");
    assert!(retry > Duration::from_secs(25) && retry <= Duration::from_secs(30), "{retry:?}");
    assert_eq!(status.metadata().get("retry-after").and_then(|value| value.to_str().ok()), Some("30"));
}
