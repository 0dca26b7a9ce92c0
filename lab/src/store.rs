//! Where the state of the limits under test lives: the one place in which runs over Redis differ from others.

use std::time::Duration;

use anyhow::{Result, bail};
use forbear::store::{AnyStore, Local, Redis};
use forbear::{Limit, Limiter, Policy};

use crate::redis_server::RedisServer;

/// Where the state of a run lives.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Home<'a> {
    /// In this process: each store is one of its own.
    Local,
    /// On this server, under this prefix: all stores are one.
    Redis(&'a RedisServer, &'a str),
}

impl Home<'_> {
    /// A store there, ready for this limit, as in a process that has been up for a moment.
    pub(crate) async fn store(self, limit: &Limit) -> Result<AnyStore> {
        match self {
            Home::Local => Ok(Local::new().into()),
            Home::Redis(server, prefix) => {
                let store = Redis::new(server.url())?.prefix(prefix);
                greet(&store, limit).await?;
                Ok(store.into())
            }
        }
    }
}

/// Makes the store's connection and brings its scripts there, by a decision about something that no run asks for:
/// a busy machine may need more than one.
async fn greet(store: &Redis, limit: &Limit) -> Result<()> {
    let limiter = Limiter::new(Policy::new("greeting").limit(limit), store)?;
    for _ in 0..50 {
        let greeted = limiter.acquire("greeting").await.is_ok();
        if greeted && !store.health().is_away() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("the Redis of this run does not answer: {}", store.health())
}
