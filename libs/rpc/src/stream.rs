//! Pieces of streaming handlers: an end when the caller may not listen any more, heartbeats, a limit for readers that do not read, and
//! streams of other services that are reopened when they break off.

pub(crate) mod answers;
pub(crate) mod bidirectional;
pub(crate) mod heartbeat;
pub(crate) mod member;
pub(crate) mod producer_stream;
pub(crate) mod reconnect_backoff;
pub(crate) mod resuming_stream;
