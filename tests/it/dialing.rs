//! Addresses that an actor would have the coordinator connect to.

use std::net::TcpListener;

use identity::SigningKey;
use serde_json::Value;

use crate::suite::{Up, stderr, stdout};

#[test]
fn no_actor_makes_the_coordinator_knock_at_its_own_ports() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it is a socket");
    let port = listener.local_addr().expect("bound").port();
    let up = Up::start(&dir.path().join("data"), &[]);
    let metadata = "grpc://169.254.169.254:80".to_owned();
    let (own, named) = (format!("grpc://127.0.0.1:{port}"), format!("grpc://localhost:{port}"));
    let somebody = SigningKey::generate().verifying_key();
    for address in [&metadata, &own, &named] {
        let refused = stderr(&up.mycora(&["runner", "register", address]), 2);
        assert!(refused.contains("this coordinator does not dial"), "{refused}");
        let refused = stderr(&up.mycora(&["actor", "update", "1", "--at", address]), 2);
        assert!(refused.contains("this coordinator does not dial"), "{refused}");
        let to = format!("{somebody}@{address}");
        let refused = stderr(&up.mycora(&["message", "send", "--to", &to, "hello"]), 2);
        assert!(refused.contains("this coordinator does not dial"), "{refused}");
    }
    assert!(listener.accept().is_err(), "somebody has connected");
    up.stop();

    // What the operator lists is dialed, and nothing beside it.
    let rule = format!("127.0.0.1:{port}");
    let up = Up::start(&dir.path().join("data"), &["--runner-addresses", &rule]);
    let registered = stdout(&up.mycora(&["--output", "json", "runner", "register", &own]), 0);
    let registered: Value = serde_json::from_str(&registered).expect("one document");
    assert_eq!(registered["runner"]["address"], own.as_str(), "{registered}");
    let refused = stderr(&up.mycora(&["runner", "register", "grpc://127.0.0.1:1"]), 2);
    assert!(refused.contains("this coordinator does not dial"), "{refused}");
    up.stop();
}
