//! Hints, event streams, and those who watch them.
//!
//! - [`events`]: entries of a stream, and the hub that hears all hints; [`positions`]: where each stream was seen last;
//! - [`tailer`], [`recent`], [`told`]: the one reader of a context's stream, what it has read last, and what it is told without reading;
//! - [`watches`], [`runner_watch`]: what watchers are told.

pub(crate) mod events;
pub(crate) mod positions;
pub(crate) mod recent;
pub(crate) mod runner_watch;
pub(crate) mod tailer;
pub(crate) mod told;
pub(crate) mod watches;
