//! The gateway between a router and a real supervisor, over both ways there are to speak to one.

mod commands;
mod conversation;
mod coordinator;
mod log_reads;
mod mail;
mod plain;
mod reloading;
mod suite;
mod supervisors;
