//! Reloads of the operator's files while orders come all the time, over two replicas of which one has never seen a file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use testkit::{PATIENCE, wait_until};

use crate::drains::Load;
use crate::process::{ReplicaProcess, admin_secret, gateway};
use crate::replicas::{MANIFEST, Stage, WAIT, divided, owner, shard, tenant};
use crate::streams::publish_event;
use crate::world::TENANT;

/// Orders of each kind that wait for their payment.
const EACH: usize = 24;
/// Line of the log that follows SIGHUP where files are good.
const TAKEN: &str = "manifests and tenants were read again";

/// The saga in a version that its calls name.
fn saga(version: u32) -> String {
    let (saga, _) = MANIFEST.split_once("---\n").expect("two documents");
    let input = |version| format!("order: \"${{{{ state.id }}}}\"{version}");
    let waits = saga.replace("{ goto: ship }", "{ goto: wait }").replace(WAIT.0, WAIT.1);
    waits
        .replace("\nversion: 1", &format!("\nversion: {version}"))
        .replace(&input(String::new()), &input(format!(", version: {version}")))
}

/// The operator's files, and the two replicas.
struct Scene {
    stage: Stage,
    manifests: PathBuf,
    provider: String,
    /// Has the files.
    a: ReplicaProcess,
    /// Has none.
    b: ReplicaProcess,
}

impl Scene {
    async fn begin() -> Self {
        let stage = Stage::with(MANIFEST).await;
        let (dir, manifests) = (stage.dir.path(), stage.dir.path().join("manifests"));
        let both = std::fs::read_to_string(manifests.join("order.yaml")).expect("it is there");
        let (_, provider) = both.split_once("---\n").expect("two documents");
        let blind = dir.join("blind");
        std::fs::create_dir(&blind).expect("made");
        for file in ["tenants.yaml", "pki"] {
            std::os::unix::fs::symlink(dir.join(file), blind.join(file)).expect("linked");
        }
        std::fs::write(manifests.join("order.yaml"), saga(1)).expect("written");
        std::fs::write(manifests.join("upstream.yaml"), provider).expect("written");
        let replica = |dir: &Path, name: &str| {
            let (redis, secret) = (stage.redis.tcp_url(), admin_secret(dir));
            let rows = ["--redis-url", &redis, "--replica", name, &secret];
            ReplicaProcess::over(dir, &stage.nats, &rows, name, 20)
        };
        let (a, b) = (replica(dir, "a"), replica(&blind, "b"));
        divided(&[&a, &b]).await;
        let provider = provider.to_owned();
        Self { manifests, provider, a, b, stage }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.manifests.join(name), text).expect("written");
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.manifests.join(name)).expect("it was there");
    }

    /// Has the files read again by the route.
    fn reload(&self) -> (u16, String) {
        self.a.send("POST", "/admin/reload", &gateway("")).expect("answered")
    }

    /// Waits until both replicas say that this version is in force, or none.
    async fn until_in_force(&self, version: Option<u32>) {
        for replica in [&self.a, &self.b] {
            let in_force = async || {
                let (status, info) = replica.ask("/info")?;
                let info: serde_json::Value = serde_json::from_str(&info).ok()?;
                let found = info["details"]["sagas"]["order"]["version"].as_u64();
                (status == 200 && found == version.map(u64::from)).then_some(())
            };
            wait_until(in_force, PATIENCE, format!("{} has {version:?}", replica.name)).await;
        }
    }

    /// Places orders, and waits until they wait for their payment.
    async fn place(&mut self, name: &str) -> Vec<String> {
        self.stage.orders(name, EACH).await;
        let orders: Vec<_> = (0..EACH).map(|number| format!("{name}-{number}")).collect();
        self.stage.until_these_at(&orders, "wait").await;
        orders
    }

    async fn pay(&self, order: &str) {
        publish_event(&*self.stage.broker, "Order", &format!("q-{order}"), "Paid", order, "{}").await;
    }

    /// Shards of these orders whose lanes are those of the replica without files.
    async fn blind_shards(&self, orders: &[String]) -> BTreeSet<u8> {
        let store = self.stage.store().await;
        let of = |order: &String| workflow::lane::shard(&tenant(), &order.parse().expect("a correlation"), 8);
        let mut shards = BTreeSet::new();
        for number in orders.iter().map(of).collect::<BTreeSet<_>>() {
            if owner(&store, &shard(number)).await.is_some_and(|owner| owner.replica == "b") {
                shards.insert(number);
            }
        }
        shards
    }

    /// Versions in the calls of these orders.
    fn versions(&self, orders: &[String]) -> BTreeSet<u64> {
        let calls = self.stage.upstream.calls();
        let bodies = calls.iter().map(|call| serde_json::from_str(&call.body).expect("JSON"));
        let of = |body: serde_json::Value| {
            let is_one = orders.iter().any(|order| body["order"] == order.as_str());
            is_one.then(|| body["version"].as_u64().expect("a version"))
        };
        bodies.filter_map(of).collect()
    }
}

/// Returns true if a text names the faults of the broken files, each with file, line and column.
fn names_faults(text: &str) -> bool {
    ["order.yaml:12:", "other.yaml:1:7: "].iter().all(|place| text.contains(place))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_are_whole_and_instances_keep_what_they_began_on() {
    let mut scene = Scene::begin().await;
    let load = Load::begin(&scene.stage, TENANT, &["OrderPlaced", "Paid"], "/tell");
    let one = scene.place("one").await;
    // A good one: running instances keep their version, new ones start on the new version.
    scene.write("order.yaml", &saga(2));
    scene.a.process.hang_up();
    scene.a.process.wait_for_line(TAKEN, PATIENCE);
    scene.until_in_force(Some(2)).await;
    let two = scene.place("two").await;
    // A broken one, by signal and by route: all faults are reported, and nothing is changed.
    scene.write("order.yaml", &saga(3).replace("goto: tell", "goto: tells"));
    scene.write("other.yaml", "kind: Sagga\n");
    scene.a.process.hang_up();
    scene.a.process.wait_for_line("reload refused, the former files stay in force: ", PATIENCE);
    let are_reported = async || names_faults(&scene.a.process.output()).then_some(());
    wait_until(are_reported, PATIENCE, "all problems are told").await;
    let (status, body) = scene.reload();
    assert!(status == 409 && names_faults(&body), "{status} {body}");
    scene.until_in_force(Some(2)).await;
    let three = scene.place("three").await;
    let loaded = load.end(&mut scene.stage).await;
    scene.stage.until_these_at(&loaded, "completed").await;
    // One without the saga, whose instances run. What they call has to stay.
    let waiting = [one.clone(), two.clone(), three.clone()].concat();
    let (first, rest) = waiting.split_at(waiting.len() / 2);
    for name in ["order.yaml", "other.yaml", "upstream.yaml"] {
        scene.remove(name);
    }
    let dropped = async {
        let (status, body) = scene.reload();
        assert!(
            status == 409 && body.contains("instances of `order`, version 1, need the effect"),
            "{status} {body}"
        );
        scene.write("upstream.yaml", &scene.provider);
        let (status, body) = scene.reload();
        assert!(status == 200 && body.contains("\"name\": \"order\""), "{status} {body}");
        scene.until_in_force(None).await;
    };
    let paid = async {
        for order in first {
            scene.pay(order).await;
        }
    };
    tokio::join!(dropped, paid);
    // These start no more: what is paid behind them, in each lane, comes to its end, and they have called nothing.
    let all = scene.stage.orders.clone();
    scene.stage.orders("four", EACH).await;
    scene.stage.orders = all;
    for order in rest {
        scene.pay(order).await;
    }
    scene.stage.until_all_ended_once().await;
    assert_eq!(scene.versions(&one), BTreeSet::from([1]));
    assert_eq!(scene.versions(&[two, three].concat()), BTreeSet::from([2]));
    assert_eq!(scene.versions(&loaded), BTreeSet::from([1, 2]), "each has one, and there are both");
    assert!(scene.stage.upstream.by_key().values().all(|(.., times)| *times == 1));
    scene.stage.are_whole_in(&*scene.stage.store().await, None).await;
    let blind = scene.blind_shards(&one).await;
    assert!(!blind.is_empty(), "a replica without files has some of their lanes");
    for replica in [&scene.a, &scene.b] {
        assert_eq!(replica.metric("fenced_commits_total"), Some(0.0), "{}", replica.name);
        assert_eq!(replica.metric("letters_written_total"), Some(0.0), "{}", replica.name);
    }
}
