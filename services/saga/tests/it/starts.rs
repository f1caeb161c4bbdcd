//! Refused starts: the process reports what is wrong and what to do, and exits.

use std::path::Path;
use std::sync::Arc;

use saga::definitions::Definitions;
use store::{EmbeddedStore, WallClock};
use testkit::{NatsServer, PATIENCE, TestProcess};

use crate::process::{ReplicaProcess, Upstream, command, prepare};
use crate::replicas::{LANES, MANIFEST};
use crate::world::TENANT;

/// Status of a process that was configured wrong, as of one with wrong flags.
const MISCONFIGURED: Option<i32> = Some(2);

/// Has a process start that must not; gives its exit code and what it said.
fn refused(dir: &Path, nats: &NatsServer, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = command(dir, nats);
    let mut process =
        TestProcess::spawn("refused", command.args(["--ops-listen", "127.0.0.1:0"]).args(arguments));
    let status = process.wait(PATIENCE);
    let output = process.output();
    assert!(!output.contains("saga started"), "{output}");
    (status.code(), output)
}

/// Prepares the files that a process reads, with the manifest of replicas.
fn prepared() -> (tempfile::TempDir, NatsServer, String) {
    let (dir, nats) = (tempfile::tempdir().expect("a directory"), NatsServer::start());
    prepare(dir.path(), MANIFEST, &Upstream::start());
    let store = dir.path().join("store").display().to_string();
    (dir, nats, store)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_over_one_directory_are_refused_by_its_name() {
    let (dir, nats, store) = prepared();
    let rows = ["--store-dir", &store];
    let mut first = ReplicaProcess::over(dir.path(), &nats, &rows, "first", 5);
    first.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    let (code, output) = refused(dir.path(), &nats, &rows);
    assert_eq!(code, Some(1), "{output}");
    let why = format!("the store in {store} belongs to another process: end that first");
    assert!(output.contains(&why), "{output}");
    // The process that has the name was not disturbed, and the message says what to do.
    assert!(first.process.is_running() && first.lanes() == LANES);
    first.process.terminate();
    assert!(first.process.wait(PATIENCE).success(), "{}", first.process.output());
    let second = ReplicaProcess::over(dir.path(), &nats, &rows, "second", 5);
    second.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placement_over_a_directory_is_refused_by_its_flags() {
    let (dir, nats, store) = prepared();
    for placed in [["--replica", "b"], ["--replica-weight", "2"]] {
        let (code, output) = refused(dir.path(), &nats, &[&["--store-dir", &*store], &placed[..]].concat());
        assert_eq!(code, MISCONFIGURED, "{output}");
        for part in [placed[0], "the store in --store-dir belongs to one", "name a Redis with --redis-url"] {
            assert!(output.contains(part), "{part}: {output}");
        }
    }
    assert!(!Path::new(&store).exists(), "nothing was made");
    let (code, output) =
        refused(dir.path(), &nats, &["--redis-url", "redis://127.0.0.1:1", "--replica", "not a name"]);
    assert_eq!(code, MISCONFIGURED, "{output}");
    assert!(output.contains("not `not a name`"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_problem_of_bad_manifests_is_listed_and_nothing_in_force_changes() {
    let (dir, nats, store) = prepared();
    let rows = ["--store-dir", &*store, "--store-max-mib", "64"];
    let mut good = ReplicaProcess::over(dir.path(), &nats, &rows, "good", 5);
    good.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
    good.process.terminate();
    assert!(good.process.wait(PATIENCE).success(), "{}", good.process.output());
    let in_force = async || {
        let rows = EmbeddedStore::open(Path::new(&store), 64 << 20, WallClock).expect("the store");
        let definitions = Definitions::new(Arc::new(rows));
        let now = definitions.refresh().await.expect("it can be read");
        let sagas: Vec<_> = now.catalog.sagas().map(|saga| (saga.name.to_string(), saga.hash)).collect();
        let tenant =
            now.tenants.as_ref().and_then(|all| all.get(&TENANT.parse().expect("a tenant")).copied());
        (now.revision, sagas, tenant)
    };
    let before = in_force().await;
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
    let order = std::fs::read_to_string(dir.path().join("manifests/order.yaml")).expect("it is there");
    // A version with other content, an unknown effect, and a tenant that moves: each is reported at its place.
    write("manifests/order.yaml", &order.replace("{ end: completed }", "{ end: failed }"));
    let other = "kind: Saga\nname: other\nversion: 1\nsources: [{ aggregate: Order }]\nstart: { on: OrderMade, goto: s }\n\
        steps: { s: { effect: shop, on_done: { end: completed } } }\n";
    write("manifests/other.yaml", other);
    write("tenants.yaml", &format!("{TENANT}: {{ context: 9 }}\n"));
    let (code, output) = refused(dir.path(), &nats, &rows);
    assert_eq!(code, MISCONFIGURED, "{output}");
    for problem in [
        "manifests/order.yaml:2:1: version 1 of the saga `order` is in force with other content; write `version: 2`",
        "manifests/other.yaml:6:23: no provider has the effect `shop`; did you mean `ship`?",
        "tenants.yaml:1:18: the tenant `acme` belongs to the context 1, and cannot move to another one",
    ] {
        assert!(output.contains(problem), "{problem}: {output}");
    }
    assert_eq!(in_force().await, before);
    // What cannot be read at all, of two files and of the tenants.
    write("manifests/order.yaml", &order.replace("goto: reserve", "gotoo: reserve"));
    write("manifests/other.yaml", "kind: Sagga\n");
    write("tenants.yaml", &format!("{TENANT}: {{ context: 1, wait: 2 }}\n"));
    let (code, output) = refused(dir.path(), &nats, &rows);
    assert_eq!(code, MISCONFIGURED, "{output}");
    for problem in ["manifests/order.yaml:8:", "manifests/other.yaml:1:7: ", "tenants.yaml:1:"] {
        assert!(output.contains(problem), "{problem}: {output}");
    }
    assert_eq!(in_force().await, before);
}
