//! Hints, event streams, and their watchers.
//!
//! - [`events`]: entries of a stream, and the hub that receives all hints; [`positions`]: last position seen in each stream;
//! - [`tailer`], [`recent_events`], [`change_feed`]: the one reader of a context's stream, its cache, and changes reported to it directly;
//! - [`event_watch`], [`runner_watch`]: watches of events and of runners.

pub(crate) mod change_feed;
pub(crate) mod event_watch;
pub(crate) mod events;
pub(crate) mod positions;
pub(crate) mod recent_events;
pub(crate) mod runner_watch;
pub(crate) mod tailer;
