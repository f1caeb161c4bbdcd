//! Hints, event streams, and those who watch them.
//!
//! - [`events`]: entries of a stream, and the hub that hears all hints; [`positions`]: where each stream was seen last;
//! - [`tailer`], [`recent_events`], [`change_feed`]: the one reader of a context's stream, what it has read last, and what it is told without reading;
//! - [`event_watch`], [`runner_watch`]: what watchers are told.

pub(crate) mod change_feed;
pub(crate) mod event_watch;
pub(crate) mod events;
pub(crate) mod positions;
pub(crate) mod recent_events;
pub(crate) mod runner_watch;
pub(crate) mod tailer;
