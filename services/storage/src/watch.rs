//! Hints, event streams, and those who watch them.
//!
//! - [`events`]: entries of a stream, and the hub that hears all hints; [`positions`]: where each stream was seen last;
//! - [`tailer`], [`recent`]: the one reader of a context's stream, and what it has read last;
//! - [`watches`], [`runner_watch`]: what watchers are told.

pub(crate) mod events;
pub(crate) mod positions;
pub(crate) mod recent;
pub(crate) mod runner_watch;
pub(crate) mod tailer;
pub(crate) mod watches;
