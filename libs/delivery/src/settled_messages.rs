//! Recently settled messages, so that a settlement can be sent to storage again.
//!
//! A settlement is lost when the stream to storage is. Storage then assigns the message again; it must be neither sent nor given
//! up a second time.

use std::collections::{HashMap, VecDeque};

use crate::message::MessageName;

/// Ends that are remembered; the oldest are forgotten first. As many as storage lets one router hold.
pub const SETTLED_MAX: usize = 10_000;

/// How messages ended lately.
#[derive(Debug, Default)]
pub struct SettledMessages {
    ends: HashMap<MessageName, SettledMessage>,
    order: VecDeque<MessageName>,
}

#[derive(Debug)]
struct SettledMessage {
    created_millis: u64,
    error: String,
}

impl SettledMessages {
    /// Notes how a message ended; well when `error` is empty.
    pub fn note(&mut self, name: MessageName, created_millis: u64, error: String) {
        if self.ends.insert(name.clone(), SettledMessage { created_millis, error }).is_none() {
            self.order.push_back(name);
        }
        if self.order.len() > SETTLED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }

    /// How a message ended. One made at another time is another message, also under the same name.
    #[must_use]
    pub fn error(&self, name: &MessageName, created_millis: u64) -> Option<&str> {
        let end = self.ends.get(name)?;
        (end.created_millis == created_millis).then_some(&*end.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ContextId;

    #[test]
    fn the_oldest_ends_are_forgotten() {
        let name = |id: usize| (ContextId(1), format!("message:7:{id}"));
        let mut settled = SettledMessages::default();
        for id in 0..=SETTLED_MAX {
            settled.note(name(id), 5, "why".to_owned());
        }
        assert_eq!(settled.error(&name(0), 5), None);
        assert_eq!(settled.error(&name(1), 5), Some("why"));
        assert_eq!(settled.error(&name(1), 6), None, "another message");
        assert_eq!((settled.ends.len(), settled.order.len()), (SETTLED_MAX, SETTLED_MAX));
    }
}
