//! What a limiter hears of its store: what others said, heartbeats, and that Redis went away or came back.

use super::{FORGET_US, Fleet};
use crate::clock;
use crate::store::redis::hub::Listener;
use crate::store::redis::names::Names;
use crate::store::redis::wire::News;

impl Fleet {
    /// Whether other workers live, as last seen.
    pub(in crate::limiter) fn has_others(&self) -> bool {
        self.hub.workers().is_some_and(|workers| workers.count > 1)
    }
}

impl Listener for Fleet {
    fn news(&self, news: &News) {
        let (name, from) = match news {
            News::Pause { key, .. } | News::Seats { key, .. } => (key, None),
            News::Throttled { key, session, .. } | News::Answered { key, session, .. } => {
                (key, Some(session))
            }
            News::Workers { .. } => return,
        };
        if from.is_some_and(|session| **session == *self.worker.session) {
            return;
        }
        let found = Names::tag_of(name).and_then(|tag| self.keys.lock().by_tag.get(tag).cloned());
        let Some(key) = found else { return };
        match *news {
            News::Pause { for_us, generation, .. } => {
                let until = if for_us == 0 { 0 } else { clock::now_us().saturating_add(for_us) };
                key.state.lock().pause(until, Some(generation));
                self.share.pause(&key.key, for_us);
            }
            News::Throttled { sent_ago_us, .. } => {
                let now = clock::now_us();
                key.state.lock().throttled(now);
                self.tell_fates(&key);
                let Some(plan) = self.keys.lock().plan() else { return };
                plan.shared.answers.throttled_elsewhere(&key.key, now.saturating_sub(sent_ago_us), now);
            }
            News::Answered { sent_ago_us, .. } => {
                let Some(plan) = self.keys.lock().plan() else { return };
                plan.shared.answers.well_elsewhere(&key.key, clock::now_us().saturating_sub(sent_ago_us));
            }
            News::Seats { epoch, granted, .. } => {
                let Some(plan) = self.keys.lock().plan() else { return };
                let mut state = key.state.lock();
                let names = state.names(self.hub.prefix(), &self.policy, &key, &plan);
                let index = names.limits.iter().position(|limit| limit == name);
                let Some(label) = index.and_then(|i| plan.rules.labels.limits.get(i)) else { return };
                state.told_seats(label, epoch, granted);
                drop(state);
                self.give_spare(&key, &plan);
            }
            News::Workers { .. } => {}
        }
    }

    fn beat(&self) {
        let now = clock::now_us();
        let mut keys = self.keys.lock();
        keys.tidy(now, FORGET_US);
        let held = keys.by_key.values().filter(|key| {
            let mut state = key.state.lock();
            let held = state.keeps_seats() || state.is_unreported();
            // The slow poll of those who wait for a seat.
            state.look_for_seats();
            held
        });
        let held = held.cloned().collect::<Vec<_>>();
        drop(keys);
        held.iter().for_each(|key| self.renew(key));
    }

    fn turned(&self, up: bool) {
        self.share.turned(up);
        // Those who wait for a seat hear of it when they ask.
        if !up {
            self.keys.lock().by_key.values().for_each(|key| key.state.lock().look_for_seats());
        }
    }
}
