//! Providers against real servers on real sockets.

mod egress_rules;
mod http;
mod http_answers;
mod http_redirects;
mod secrets;
mod sink;
mod smtp;
mod smtp_refusals;
mod stage;
mod upstream;
