//! A limiter without HTTP: mails through a provider that takes 14 a second, 5 at the same time, and a daily
//! quota counted in recipients.
//!
//! ```text
//! cargo run --release --example mail
//! ```

use std::time::Duration;

use forbear::{Ask, Limiter, Policy, RefusedKind, store::Local};
use tokio::time::{Instant, sleep};

// On one thread, so that the mails ask in their order.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Policy::new("mail").limit("14/s").limit("5 at once").limit("60 recipients/day burst 60");
    let limiter = Limiter::new(policy, Local::new())?;
    let start = Instant::now();

    let mails = (1..=30).map(|number| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            // Held back for at most ten seconds; what cannot go in that time is refused at once.
            let ask = Ask::new("smtp.example.com").cost("recipients", 3).max_wait(Duration::from_secs(10));
            match limiter.acquire(ask).await {
                Ok(permit) => {
                    println!("{:>5.2} s  mail {number} goes", start.elapsed().as_secs_f64());
                    send().await;
                    // One address was unknown to the server, and does not count.
                    if number % 10 == 0 {
                        permit.settle("recipients", 2);
                    }
                    Ok(())
                }
                Err(refused) => Err(refused),
            }
        })
    });

    let mut refused = Vec::new();
    for mail in mails.collect::<Vec<_>>() {
        refused.extend(mail.await?.err());
    }
    println!("\n{} mails did not go today; the first because:", refused.len());
    if let Some(first) = refused.first() {
        assert_eq!(first.kind(), RefusedKind::RateLimited);
        println!("  {first}");
    }
    println!("left under each limit:");
    for limit in limiter.peek("smtp.example.com").await.limits() {
        println!("  {:14} {:>3} of {}", limit.name(), limit.remaining(), limit.quota());
    }
    Ok(())
}

/// Stands for a conversation with a mail server.
async fn send() {
    sleep(Duration::from_millis(200)).await;
}
