//! Answers of a watch, on their way to whoever watches.

pub(super) use rpc::WatchEnded as Ended;
pub use rpc::{ANSWERS_MAX as CHANNEL, AnswerSender};
