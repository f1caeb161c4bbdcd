//! Chat and mail.
//!
//! - [`outgoing`]: they leave; [`mailbox`]: they arrive and are acknowledged;
//! - [`message_lists`], [`inbox_watch`]: they are looked at and awaited.

pub(crate) mod inbox_watch;
pub(crate) mod mailbox;
pub(crate) mod message_lists;
pub(crate) mod outgoing;
