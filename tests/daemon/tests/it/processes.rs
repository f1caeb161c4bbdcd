//! Daemons as processes, and the real one where there is one.

use std::path::PathBuf;

use serde_json::json;
use stand_in::Program;
use testkit::{PATIENCE, wait_until};

use crate::client::{Naive, b64};

fn binary() -> PathBuf {
    Program::real().unwrap_or_else(|| env!("CARGO_BIN_EXE_mycelium-stand-in").into())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_find_each_other_and_again_after_a_restart() {
    let dirs = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut a = Program::start(&binary(), dirs.0.path(), &[]);
    let b = Program::start(&binary(), dirs.1.path(), &[a.port()]);
    let (to_a, to_b) = (Naive::new(&a.url("http")), Naive::new(&b.url("http")));
    let (a_key, b_key) = (to_a.key().await, to_b.key().await);
    for round in 0..2 {
        let payload = format!("to b {round}");
        to_a.push(&b_key, "t", &payload).await;
        let popped = to_b.popped(Some("t")).await;
        assert_eq!((&popped["srcPk"], &popped["payload"]), (&json!(a_key), &json!(b64(&payload))));
        to_b.push(&a_key, "t", "to a").await;
        assert_eq!(to_a.popped(Some("t")).await["srcPk"], b_key);
        if round == 0 {
            a.kill();
            a.launch();
            assert_eq!(to_a.key().await, a_key);
        }
    }
    let ip = to_b.call("getInfo", json!([])).await.unwrap()["nodeIp"].clone();
    let known = async || to_a.call("getPublicKeyFromIp", json!([ip])).await.ok();
    assert_eq!(wait_until(known, PATIENCE, "the route is known").await, b_key);
    let peers = to_b.call("getPeers", json!([])).await.unwrap();
    assert_eq!((peers.as_array().unwrap().len(), &peers[0]["connectionState"]), (1, &json!("alive")));
}
