//! Stored position of a source, and its comparison with the stream.

use std::fmt;

use broker::{StoredMessage, StreamState};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use workflow::lane_request::RewindTarget;

/// How far before the last message read, in milliseconds, reading resumes after a stream went back.
const BACK_MILLIS: u64 = 3_600_000;

/// How far a source was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// When the stream was made, in milliseconds since 1970.
    pub incarnation: u64,
    /// The last sequence up to which everything is settled.
    pub position: u64,
    /// The last message that was settled, by which the stream is recognised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor: Option<Anchor>,
    /// The moment at which reading begins, in milliseconds since 1970, while nothing was settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// The position before the source was set back, until that is reached again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again_to: Option<u64>,
}

/// A message by which a stream is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Sequence of the message.
    pub sequence: u64,
    /// Time at which it was stored, in milliseconds since 1970.
    pub stored: u64,
    /// The first bytes of the hash of its subject and payload.
    pub digest: u64,
}

impl Anchor {
    /// The anchor that a message makes.
    #[must_use]
    pub fn of(subject: &str, payload: &[u8], sequence: u64, stored: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update((subject.len() as u64).to_be_bytes());
        hash.update(subject);
        hash.update(payload);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.finalize()[..8]);
        Self { sequence, stored, digest: u64::from_be_bytes(first) }
    }

    /// Returns whether a message is the one that made this anchor.
    #[must_use]
    pub fn is_of(&self, message: &StoredMessage) -> bool {
        *self == Self::of(&message.subject, &message.payload, message.sequence, message.stored_millis)
    }
}

/// Result of comparing a checkpoint with its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointComparison {
    /// Stream is as it was: reading goes on behind the position.
    GoesOn,
    /// Stream is as it was, but this many unread messages are gone.
    Expired(u64),
    /// Stream went back, or is another one.
    WentBack(StreamLoss),
}

/// Evidence that a stream lost messages that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamLoss {
    /// Stream was made after the one that was read.
    MadeAnew,
    /// Stream ends before the position.
    Shorter,
    /// Stream has another message where the last one was that was read: its sequences are used again.
    OtherMessage,
}

impl StreamLoss {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::MadeAnew, Self::Shorter, Self::OtherMessage];

    /// Returns the name that metrics use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MadeAnew => "made_anew",
            Self::Shorter => "shorter",
            Self::OtherMessage => "other_message",
        }
    }
}

impl fmt::Display for StreamLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MadeAnew => "the stream was made anew",
            Self::Shorter => "its end is before the position",
            Self::OtherMessage => "another message has the sequence of the last one read",
        })
    }
}

impl Checkpoint {
    /// The checkpoint of a source that was never read.
    #[must_use]
    pub const fn new(incarnation: u64, since: Option<u64>) -> Self {
        Self { incarnation, position: 0, anchor: None, since, again_to: None }
    }

    /// The highest position so far: a source that was set back is on its way to it.
    #[must_use]
    pub fn was_at(&self) -> u64 {
        self.again_to.unwrap_or_default().max(self.position)
    }

    /// Compares it with a stream. `at_anchor` is the message that the stream has where the anchor was.
    #[must_use]
    pub fn compare(&self, stream: &StreamState, at_anchor: Option<&StoredMessage>) -> CheckpointComparison {
        if self.incarnation != stream.incarnation {
            return CheckpointComparison::WentBack(StreamLoss::MadeAnew);
        }
        if stream.last_sequence < self.position {
            return CheckpointComparison::WentBack(StreamLoss::Shorter);
        }
        // A missing anchor message was deleted or has expired: the messages behind it are as they were.
        if let (Some(anchor), Some(message)) = (&self.anchor, at_anchor)
            && !anchor.is_of(message)
        {
            return CheckpointComparison::WentBack(StreamLoss::OtherMessage);
        }
        match stream.first_sequence.checked_sub(self.position + 1) {
            Some(gone) if gone > 0 && self.position > 0 => CheckpointComparison::Expired(gone),
            _ => CheckpointComparison::GoesOn,
        }
    }

    /// The checkpoint from which a source is read again; `None` where it was not read that far.
    #[must_use]
    pub fn set_back(&self, to: RewindTarget) -> Option<Self> {
        let Self { incarnation, position, .. } = *self;
        let again_to = Some(self.was_at());
        match to {
            RewindTarget::Sequence(sequence) => {
                let position = sequence.saturating_sub(1);
                (position < self.position).then_some(Self {
                    incarnation,
                    position,
                    anchor: None,
                    since: None,
                    again_to,
                })
            }
            RewindTarget::Time(time) => {
                let is_behind = match (self.anchor, self.since) {
                    (Some(anchor), _) => anchor.stored >= time,
                    (None, Some(since)) if position == 0 => since > time,
                    // Either reading begins with the first message, or the time of the position is unknown.
                    (None, _) => false,
                };
                let since = Some(time);
                is_behind.then_some(Self { incarnation, position: 0, anchor: None, since, again_to })
            }
        }
    }

    /// The checkpoint after the stream went back: reading resumes at messages stored shortly before the last one read.
    #[must_use]
    pub fn back(&self, incarnation: u64) -> Self {
        let since = self.anchor.map(|anchor| anchor.stored.saturating_sub(BACK_MILLIS)).or(self.since);
        Self::new(incarnation, Some(since.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use broker::{Headers, StreamSettings, StreamStorage};
    use bytes::Bytes;

    use super::*;

    fn stream(incarnation: u64, first: u64, last: u64) -> StreamState {
        let settings = StreamSettings {
            subjects: Vec::new(),
            retention: broker::StreamRetention::Limits,
            storage: StreamStorage::File,
            discard: broker::StreamDiscard::New,
            duplicate_window: std::time::Duration::ZERO,
            max_age: std::time::Duration::ZERO,
            max_consumers: -1,
            replicas: 1,
        };
        StreamState {
            incarnation,
            first_sequence: first,
            last_sequence: last,
            messages: last,
            consumers: 0,
            settings,
        }
    }

    fn message(payload: &'static str) -> StoredMessage {
        StoredMessage {
            subject: "a".to_owned(),
            headers: Headers::new(),
            payload: Bytes::from_static(payload.as_bytes()),
            sequence: 7,
            stored_millis: 5,
        }
    }

    #[test]
    fn a_stream_that_forgets_is_noticed() {
        let anchor = Anchor::of("a", b"x", 7, 5);
        let read = Checkpoint { position: 9, anchor: Some(anchor), ..Checkpoint::new(1, None) };
        let (same, other) = (message("x"), message("y"));
        for (stream, found, expected) in [
            (stream(1, 1, 9), Some(&same), CheckpointComparison::GoesOn),
            (stream(1, 10, 9), None, CheckpointComparison::GoesOn),
            (stream(1, 8, 20), None, CheckpointComparison::GoesOn),
            (stream(1, 13, 20), None, CheckpointComparison::Expired(3)),
            (stream(2, 1, 9), Some(&same), CheckpointComparison::WentBack(StreamLoss::MadeAnew)),
            (stream(1, 1, 8), Some(&same), CheckpointComparison::WentBack(StreamLoss::Shorter)),
            (stream(1, 1, 20), Some(&other), CheckpointComparison::WentBack(StreamLoss::OtherMessage)),
        ] {
            assert_eq!(read.compare(&stream, found), expected, "{stream:?}");
        }
        // A source that was never read cannot miss anything.
        assert_eq!(
            Checkpoint::new(1, Some(4)).compare(&stream(1, 50, 60), None),
            CheckpointComparison::GoesOn
        );
        let place = RewindTarget::Time;
        let time = |since, again_to| {
            Some(Checkpoint { since: Some(since), again_to: Some(again_to), ..Checkpoint::new(1, None) })
        };
        let back = Checkpoint { position: 3, again_to: Some(9), ..Checkpoint::new(1, None) };
        assert_eq!(read.set_back(RewindTarget::Sequence(4)), Some(back.clone()));
        assert_eq!((read.set_back(place(5)), read.set_back(place(1))), (time(5, 9), time(1, 9)));
        // The original position survives a second set-back on the way.
        let further = Checkpoint { position: 1, ..back.clone() };
        assert_eq!((back.was_at(), back.set_back(RewindTarget::Sequence(2))), (9, Some(further)));
        // Setting back never skips messages.
        assert_eq!((read.set_back(RewindTarget::Sequence(10)), read.set_back(place(6))), (None, None));
        let begun = Checkpoint::new(1, Some(4));
        assert_eq!((begun.set_back(place(3)), begun.set_back(place(4))), (time(3, 0), None));
        let late = Anchor { stored: 10_000_000, ..anchor };
        assert_eq!(Checkpoint { anchor: Some(late), ..read }.back(2).since, Some(6_400_000));
    }
}
