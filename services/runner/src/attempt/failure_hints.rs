//! Hints on grants that a failed script lacked, read from its output: programs rarely say that a socket was refused to them.

use model::ReasonCode;
use model::execution::{AttemptEnd, Outcome};

/// Messages, in lower case, of programs that find no network: resolvers, curl, git, ping, Python, Rust, Go, Node.
const NO_NETWORK: &[&str] = &[
    "could not resolve host",
    "temporary failure in name resolution",
    "temporary failure resolving",
    "name or service not known",
    "unable to resolve host",
    "failed to lookup address",
    "getaddrinfo",
    "failed to establish a new connection",
    "network is unreachable",
    "could not connect to server",
    "failed to connect to",
    "couldn't connect to",
    "dial tcp",
];
/// Messages in or near a line about a socket that was refused.
const REFUSED: &[&str] = &["permission denied", "operation not permitted", "permissionerror", "eperm"];

/// Returns true if the end of an output reads like that of a script that found no network.
pub(super) fn lacks_network(tail: &str) -> bool {
    let tail = tail.to_ascii_lowercase();
    NO_NETWORK.iter().any(|phrase| tail.contains(phrase))
        || tail.contains("socket") && REFUSED.iter().any(|phrase| tail.contains(phrase))
}

/// Adds to the reason of a script that failed by itself how it would have the network.
pub(super) fn add_network_hint(end: &mut AttemptEnd) {
    if let (Outcome::Failed, Some(reason)) = (end.outcome, &mut end.reason)
        && reason.code == ReasonCode::ExitCode
    {
        reason.detail.push_str(
            "; by its output it wanted the network, which this job does not have: `network: true` in the flow file gives it one",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_errors_in_the_output_of_programs_are_recognized() {
        for output in [
            "curl: (6) Could not resolve host: example.com",
            "ERROR: ... [Errno -3] Temporary failure in name resolution",
            "  File \"/usr/lib/python3.11/socket.py\", line 232, in __init__\nPermissionError: [Errno 1] Operation not permitted",
            "thread 'main' panicked: failed to lookup address information",
            "getaddrinfo EAI_AGAIN registry.npmjs.org",
        ] {
            assert!(lacks_network(output), "{output}");
        }
        for output in ["", "cat: /etc/shadow: Permission denied", "the socket wrench is gone"] {
            assert!(!lacks_network(output), "{output}");
        }
    }
}
