//! A polite crawler: a budget for each host, other numbers for one of them, one cap over all, and downloads
//! that hold their seat until the last byte.
//!
//! Three servers on loopback stand for the web; `archive` is slow and serves large files.
//!
//! ```text
//! cargo run --release --example crawler
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forbear::{Builder, Policy};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::time::{Instant, sleep};
use tower::service_fn;

const PAGES: usize = 12;
const LARGE: usize = 2 * 1024 * 1024;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sites = [
        Site::start("blog", Duration::from_millis(5), 2_000).await?,
        Site::start("shop", Duration::from_millis(5), 8_000).await?,
        Site::start("archive", Duration::from_millis(300), LARGE).await?,
    ];
    let archive = sites[2].address.to_string();

    let client = Builder::new(reqwest::Client::new())
        // Whoever says nothing gets this, each host by itself.
        .each_host(Policy::new("others").limit("10/s").limit("4 at once"))
        // Large files: few at a time, and they may start as fast as seats come free.
        .host(&archive, Policy::new("archive").limit("2 at once"))
        // However many hosts there are, no more than this at the same time.
        .overall(Policy::new("all").limit("8 at once"))
        .build()?;

    let start = Instant::now();
    let pages =
        sites.iter().flat_map(|site| (0..PAGES).map(|page| format!("http://{}/{page}", site.address)));
    let downloads = pages.map(|url| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut response = client.get(url).send().await?;
            let mut bytes = 0;
            while let Some(chunk) = response.chunk().await? {
                bytes += chunk.len();
            }
            Ok::<_, reqwest_middleware::Error>(bytes)
        })
    });
    let mut bytes = 0;
    for download in downloads.collect::<Vec<_>>() {
        bytes += download.await??;
    }

    println!("{} pages, {} MiB in {:.1} s", 3 * PAGES, bytes / 1024 / 1024, start.elapsed().as_secs_f64());
    for (site, cap) in sites.iter().zip([4, 4, 2]) {
        let [all, most] = [&site.all, &site.most].map(|count| count.load(Ordering::Relaxed));
        println!("  {:8} {all} requests, at most {most} at once, of {cap} that may", site.name);
    }
    Ok(())
}

/// A server on loopback that knows how many requests it has under way.
struct Site {
    name: &'static str,
    address: SocketAddr,
    all: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Site {
    async fn start(name: &'static str, time: Duration, size: usize) -> Result<Self, std::io::Error> {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let site = Self { name, address: listener.local_addr()?, all: Arc::default(), most: Arc::default() };
        let (all, most, now) = (site.all.clone(), site.most.clone(), Arc::new(AtomicUsize::new(0)));
        let page = service_fn(move |_: Request<Incoming>| {
            let (all, most, now) = (all.clone(), most.clone(), now.clone());
            async move {
                all.fetch_add(1, Ordering::Relaxed);
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                sleep(time).await;
                now.fetch_sub(1, Ordering::Relaxed);
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![b'x'; size]))))
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(page.clone());
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(site)
    }
}
