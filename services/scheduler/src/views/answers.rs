//! Answers of a watch, on their way to the watcher.

pub(super) use rpc::WatchEnded as Ended;
pub use rpc::{ANSWERS_MAX as CHANNEL, AnswerSender, AnswerStream};
