//! What others say: pauses, seats that were handed over, and how calls of theirs were answered.
//!
//! One more connection, which only listens. Its loss is no outage, and it comes back by itself: every decision
//! returns the pause, and the heartbeat asks for seats. Only what others were answered is heard nowhere else: without
//! it a worker judges a row of 429s by its own answers, and its slots do not lapse with a soft 429 of another.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::fault::Fault;
use super::hub::{HEARTBEAT, Hub};
use super::wire::News;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LAST_WAIT: Duration = Duration::from_secs(1);
/// Where the server does not let us listen.
const REFUSED_WAIT: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(1);

/// Listens until it is dropped.
pub(super) struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) fn listen(hub: Weak<Hub>) -> Listening {
    Listening(tokio::spawn(keep_listening(hub)))
}

/// A connection that is subscribed, and what is heard on it.
struct Ear {
    connection: MultiplexedConnection,
    heard: UnboundedReceiver<PushInfo>,
    joined: Arc<Notify>,
    /// How many of this process's limiters have a channel on it.
    own: u64,
}

async fn keep_listening(hub: Weak<Hub>) {
    let (mut number, mut wait) = (0, FIRST_WAIT);
    while let Some(attempt) = subscribe(&hub, number).await {
        number += 1;
        let flaw = match attempt {
            Ok(ear) => {
                wait = FIRST_WAIT;
                set_flaw(&hub, None);
                ear.follow(&hub).await;
                None
            }
            Err(Fault::Broken(text)) => {
                wait = (wait * 2).min(LAST_WAIT);
                Some(text)
            }
            Err(fault) => {
                wait = REFUSED_WAIT;
                Some(fault.text().to_owned())
            }
        };
        if let Some(flaw) = flaw {
            set_flaw(&hub, Some(&format!("does not hear what others say, but when it asks: {flaw}")));
        }
        sleep(wait).await;
    }
}

fn set_flaw(hub: &Weak<Hub>, flaw: Option<&str>) {
    if let Some(hub) = hub.upgrade() {
        hub.heart.set_flaw(flaw);
    }
}

/// `None` when there is nobody to listen for, or nowhere to listen.
async fn subscribe(hub: &Weak<Hub>, number: usize) -> Option<Result<Ear, Fault>> {
    let (server, everyone, joined) = {
        let hub = hub.upgrade()?;
        (hub.settings().server.clone(), hub.worker().channel.clone(), hub.heart.joined.clone())
    };
    let (said, heard) = unbounded_channel();
    let attempt = async {
        // Sending fails only once nobody listens any more.
        let mut connection = match server.listen(number, move |push| _ = said.send(push)).await? {
            Ok(connection) => connection,
            Err(error) => return Some(Err(Fault::of(&error))),
        };
        let subscribed = connection.subscribe(&*everyone).await;
        let ear = Ear { connection, heard, joined, own: 0 };
        Some(subscribed.map(|()| ear).map_err(|error| Fault::of(&error)))
    };
    let late = |_| Some(Err(Fault::Broken("no answer".into())));
    timeout(CONNECT, attempt).await.unwrap_or_else(late)
}

impl Ear {
    /// Passes on what is heard, until the connection is gone.
    async fn follow(mut self, hub: &Weak<Hub>) {
        while self.hear_own(hub).await {
            tokio::select! {
                push = self.heard.recv() => match push {
                    Some(push) if push.kind == PushKind::Message => pass_on(hub, &push),
                    Some(push) if push.kind != PushKind::Disconnection => {}
                    _ => return,
                },
                () = self.joined.notified() => {}
                // So long a silence may be that of a connection that is only half there.
                () = sleep(HEARTBEAT) => {
                    let ping = redis::cmd("PING");
                    let answer = timeout(CONNECT, self.connection.send_packed_command(&ping)).await;
                    if !matches!(answer, Ok(Ok(_))) {
                        return;
                    }
                }
            }
        }
    }

    /// Listens for the limiters that joined since. By name: a user who may hear only some channels may use no
    /// patterns but those of its own rule.
    async fn hear_own(&mut self, hub: &Weak<Hub>) -> bool {
        let Some((channels, joined)) = hub.upgrade().map(|hub| hub.channels_from(self.own)) else {
            return false;
        };
        self.own = joined;
        channels.is_empty()
            || matches!(timeout(CONNECT, self.connection.subscribe(&channels)).await, Ok(Ok(())))
    }
}

fn pass_on(hub: &Weak<Hub>, push: &PushInfo) {
    let (Some(hub), Some(Value::BulkString(payload))) = (hub.upgrade(), push.data.last()) else { return };
    match News::read(payload) {
        Some(News::Workers { count }) => hub.heart.count(count),
        Some(news) => hub.live_listeners().iter().for_each(|listener| listener.news(&news)),
        None => {}
    }
}
