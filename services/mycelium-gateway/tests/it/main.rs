//! The gateway between a router and a real supervisor, over both ways there are to speak to one.

mod attempt_logs;
mod conversation;
mod coordinator;
mod letters;
mod plain;
mod reloading;
mod suite;
mod supervisors;
mod wishes;
