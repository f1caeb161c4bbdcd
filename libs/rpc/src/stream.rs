//! Pieces of streaming handlers: an end when their caller may listen no more, a sign of life, a limit for those who do not read, and streams of other
//! services that are asked for again when they break off.

pub(crate) mod answers;
pub(crate) mod bidirectional;
pub(crate) mod heartbeat;
pub(crate) mod member;
pub(crate) mod producer_stream;
pub(crate) mod reconnect_backoff;
pub(crate) mod resuming_stream;
