//! Outages of the service's dependencies: each is named, memory is bounded, and afterwards everything ends as if nothing had
//! happened.

use std::io::Write as _;
use std::time::{Duration, Instant};

use store::{EmbeddedStore, WallClock};
use testkit::{FaultProxy, PATIENCE, ProxyFault, ProxyTarget, SmallDisk, wait_until};

use crate::process::{ReplicaProcess, memory_kib};
use crate::replicas::{LANES, MANIFEST, Stage, WAIT};

/// Makes outages last so many seconds at least; without it they last until they are noticed.
const OUTAGE_SECS: &str = "MYCORA_TEST_OUTAGE_SECS";
/// Number of orders in the middle of which something goes away.
const ORDERS: &str = "MYCORA_TEST_SAGAS";
/// By so much a process may grow while it waits, in kibibytes.
pub(crate) const GROWTH_KIB_MAX: u64 = 64 * 1024;
/// Orders after which a store of one mebibyte has no room, at the latest.
const FILLING_MAX: usize = 2000;

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Orders that wait, and a process that has all lanes.
struct Scene {
    stage: Stage,
    process: ReplicaProcess,
    rows: Vec<String>,
}

impl Scene {
    /// Begins with a process that keeps its rows as these arguments say.
    async fn begin(rows: impl Fn(&Stage) -> Vec<String>) -> Self {
        let manifest = MANIFEST.replace("{ goto: ship }", "{ goto: wait }").replace(WAIT.0, WAIT.1);
        Self::on(Stage::with(&manifest).await, rows).await
    }

    /// Begins on this stage.
    async fn on(stage: Stage, rows: impl Fn(&Stage) -> Vec<String>) -> Self {
        let rows = rows(&stage);
        let process = Self::process(&stage, &rows);
        process.until_lanes(|lanes| lanes == LANES, "it has all lanes").await;
        Self { stage, process, rows }
    }

    fn process(stage: &Stage, rows: &[String]) -> ReplicaProcess {
        let rows: Vec<_> = rows.iter().map(String::as_str).collect();
        ReplicaProcess::over(stage.dir.path(), &stage.nats, &rows, "a", 5)
    }

    /// Has orders come as far as they do by themselves.
    async fn orders(&mut self) {
        self.stage.orders("order", number(ORDERS).unwrap_or(60)).await;
        self.stage.until_all_at("wait").await;
    }

    /// Waits until the service says that this is wrong, and as long as outages are to last.
    async fn suffer(&self, name: &str) {
        let begin = Instant::now();
        let is_named = async || {
            let troubles = self.process.troubles();
            troubles.lines().any(|line| line.starts_with(name)).then_some(troubles)
        };
        let troubles = wait_until(is_named, PATIENCE, format!("`{name}` is named")).await;
        let least = Duration::from_secs(number(OUTAGE_SECS).unwrap_or(0) as u64);
        let is_over = async || (begin.elapsed() >= least).then_some(());
        wait_until(is_over, least + PATIENCE, "it has lasted long enough").await;
        println!("{name}, {:?}: {}", begin.elapsed(), troubles.trim_end());
    }

    /// Waits for the end of all orders: nothing is lost, doubled or poison, nothing is wrong any more, and memory was bounded.
    async fn heal(&mut self, before_kib: u64) {
        let begin = Instant::now();
        self.stage.until_all_ended_once().await;
        let is_well = async || (self.process.ask("/health")?.0 == 200).then_some(());
        wait_until(is_well, PATIENCE, "nothing is wrong any more").await;
        let (now, most) = memory_kib(self.process.process.pid());
        let count = self.stage.orders.len();
        println!(
            "{count} orders ended {:?} after it; {before_kib} KiB, {most} at most, {now} now",
            begin.elapsed()
        );
        assert!(most < before_kib + GROWTH_KIB_MAX, "it grew from {before_kib} KiB to {most}");
        assert_eq!(self.process.metric("letters_written_total"), Some(0.0));
        assert_eq!(self.process.metric("fenced_commits_total"), Some(0.0));
    }

    /// Ends the process, which has to be able to.
    fn end(&mut self) {
        self.process.process.terminate();
        assert!(self.process.process.wait(PATIENCE).success(), "{}", self.process.process.output());
    }
}

fn in_a_directory(dir: &std::path::Path, mebibytes: u32) -> Vec<String> {
    let arguments = ["--store-dir", &dir.display().to_string(), "--store-max-mib", &mebibytes.to_string()];
    arguments.map(str::to_owned).to_vec()
}

fn in_redis(stage: &Stage) -> Vec<String> {
    ["--redis-url", &stage.redis.tcp_url(), "--replica", "a"].map(str::to_owned).to_vec()
}

/// Has orders paid until a store has no room for what follows.
async fn fill(scene: &mut Scene) {
    let mut placed = 0;
    while !scene.process.troubles().lines().any(|line| line.starts_with("store: ")) {
        assert!(placed < FILLING_MAX, "{placed} orders find room");
        scene.stage.orders(&format!("filling-{placed}"), 20).await;
        placed += 20;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_room_is_named_and_goes_on_with_more() {
    let mut scene = Scene::begin(|stage| in_a_directory(&stage.dir.path().join("store"), 1)).await;
    let (before, _) = memory_kib(scene.process.process.pid());
    fill(&mut scene).await;
    scene.stage.pay().await;
    scene.suffer("store: the store is full: ").await;
    assert!(
        scene.process.ask("/ready").is_some_and(|(status, _)| status == 200),
        "what it answers it can answer"
    );
    let (_, most) = memory_kib(scene.process.process.pid());
    assert!(most < before + GROWTH_KIB_MAX, "it grew from {before} KiB to {most}");
    // What waits for room does not keep it from ending. The room of a directory is that of its map, which a start sets.
    scene.end();
    let store = scene.stage.dir.path().join("store");
    scene.rows = in_a_directory(&store, 256);
    scene.process = Scene::process(&scene.stage, &scene.rows);
    scene.heal(before).await;
    scene.end();
    let rows = EmbeddedStore::open(&store, 256 << 20, WallClock).expect("the store");
    scene.stage.are_whole_in(&rows, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_without_room_is_named_and_gone_on_with() {
    let Some(disk) = SmallDisk::new(96) else {
        // Past the capture of tests that pass.
        let written = std::io::stderr()
            .write_all(b"left out: a disk without room; no file system can be mounted here\n");
        return written.expect("there is a standard error");
    };
    let store = disk.path().join("store");
    let mut scene = Scene::begin(|_| in_a_directory(&store, 64)).await;
    scene.orders().await;
    let (before, _) = memory_kib(scene.process.process.pid());
    disk.fill_up("filler", 0);
    fill(&mut scene).await;
    scene.stage.pay().await;
    scene.suffer("store: ").await;
    assert!(
        scene.process.troubles().contains("no space is left on the disk of"),
        "{}",
        scene.process.troubles()
    );
    disk.empty("filler");
    scene.heal(before).await;
    scene.end();
    let rows = EmbeddedStore::open(&store, 64 << 20, WallClock).expect("the store");
    scene.stage.are_whole_in(&rows, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_without_memory_is_named_and_gone_on_with() {
    let mut scene = Scene::begin(in_redis).await;
    scene.orders().await;
    let (before, _) = memory_kib(scene.process.process.pid());
    let _ = scene.stage.redis.raw(0, &["CONFIG", "SET", "maxmemory", "1"]);
    scene.stage.pay().await;
    scene.suffer("store: the store is full: ").await;
    let _ = scene.stage.redis.raw(0, &["CONFIG", "SET", "maxmemory", "0"]);
    scene.heal(before).await;
    scene.stage.are_whole_in(&*scene.stage.store().await, Some(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_is_named_and_gone_on_with() {
    let stores: [fn(&Stage) -> Vec<String>; 2] =
        [in_redis, |stage| in_a_directory(&stage.dir.path().join("store"), 64)];
    for rows in stores {
        let mut scene = Scene::begin(rows).await;
        scene.orders().await;
        let (before, _) = memory_kib(scene.process.process.pid());
        scene.stage.pay().await;
        // Calls are made, and their outcomes can be neither stored nor sent.
        scene.stage.upstream.hold("/ship");
        let is_called = async || (scene.stage.upstream.count("/ship") > 0).then_some(());
        wait_until(is_called, PATIENCE, "calls are under way").await;
        scene.stage.nats.kill9();
        scene.stage.upstream.release();
        scene.suffer("nats: ").await;
        scene.stage.nats.restart();
        scene.heal(before).await;
    }
}

/// The manifest of replicas with a step that waits, whose effect `ship` is tried for as long as it takes.
fn patient() -> String {
    let patience = "timeouts: { schedule_to_start: 2h, schedule_to_close: 2h }, breaker: { window: 5, open: 100ms }, \
        retry: { initial: 10ms, max: 200ms, attempts: 100000 } }";
    let ship = "path: /ship, body: \"${{ input }}\" }, ";
    let manifest = MANIFEST.replace("{ goto: ship }", "{ goto: wait }").replace(WAIT.0, WAIT.1);
    let usual = "timeouts: { start_to_close: 10m }, retry: { initial: 1ms } }";
    let manifest = manifest.replace(&format!("{ship}{usual}"), &format!("{ship}{patience}"));
    assert!(manifest.contains(patience));
    manifest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_away_is_named_and_gone_on_with() {
    let stores: [fn(&Stage) -> Vec<String>; 2] =
        [in_redis, |stage| in_a_directory(&stage.dir.path().join("store"), 64)];
    for rows in stores {
        let stage = Stage::with(&patient()).await;
        let target = ProxyTarget::Tcp(stage.upstream.address.parse().expect("an address"));
        let proxy = FaultProxy::start(target).await;
        let file = stage.dir.path().join("manifests/order.yaml");
        let manifest = std::fs::read_to_string(&file).expect("it is there");
        let by_proxy = manifest.replace(&stage.upstream.address, &proxy.address().to_string());
        std::fs::write(&file, by_proxy).expect("written");
        let mut scene = Scene::on(stage, rows).await;
        scene.orders().await;
        let (before, _) = memory_kib(scene.process.process.pid());
        proxy.set(ProxyFault::Cut);
        scene.stage.pay().await;
        let is_open =
            async || (scene.process.metric("effects_open")? == scene.stage.orders.len() as f64).then_some(());
        wait_until(is_open, scene.stage.patience(), "all calls wait").await;
        scene.suffer("upstream of ship: ").await;
        assert_eq!(
            scene.process.ask("/ready").map(|(status, _)| status),
            Some(200),
            "it is not its own trouble"
        );
        proxy.restore();
        scene.heal(before).await;
        assert!(scene.stage.upstream.by_key().values().all(|(.., times)| *times == 1));
        scene.end();
    }
}
