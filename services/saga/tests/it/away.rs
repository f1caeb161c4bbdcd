//! Upstreams and gateways of aggregates that do not answer for long: what waits for them is bounded, and ends once they do.

use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use saga::lane::gateway::{AggregateCommand, Gateway, GatewayAnswer};
use saga::providers::http::HttpProvider;
use saga::sagas::SagaLane;
use saga::secrets::Secrets;
use saga::tenants::TenantRegistry;
use store::{Clock as _, KvStore, LaneKey, RowKey, StoreError, VersionedValue};
use testkit::{PATIENCE, wait_until};
use tokio_util::sync::CancellationToken;
use workflow::LaneRowKey;
use workflow::instance::decode;
use workflow::key::StoreTable;
use workflow::ledger::CallRow;
use workflow::provider::ProviderTransport;

use crate::clock::SetForward;
use crate::hooked_store::{HookedStore, StoreHook};
use crate::outages::GROWTH_KIB_MAX;
use crate::process::{Upstream, memory_kib};
use crate::world::{EFFECT, TENANT, World};

/// Number of orders that wait for an upstream.
const ORDERS: &str = "MYCORA_TEST_SAGAS";

/// Number of rows of an outbox beyond which nothing new is taken in.
const OUTBOX: &str = "MYCORA_TEST_OUTBOX";

/// Set in a process that runs one test alone.
const ALONE: &str = "MYCORA_TEST_ALONE";

fn number(variable: &str) -> Option<usize> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Has lanes see a clock that tests set forward, which is that of this machine: rows that go by themselves stay for longer.
struct ClockAhead(SetForward);

#[async_trait]
impl StoreHook for ClockAhead {
    async fn now(&self, _: &dyn KvStore) -> Result<u64, StoreError> {
        Ok(self.0.now())
    }
}

const CALLS: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: reserve }
steps:
  reserve: { effect: payment-reserve, input: { order: "${{ state.id }}" }, on_done: { end: completed } }
---
kind: EffectProvider
name: payment
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects:
  payment-reserve:
    request: { method: POST, path: /reserve, body: "${{ input }}" }
    timeouts: { schedule_to_start: 2h, schedule_to_close: 2h }
    retry: { initial: 1s, max: 60s, attempts: 100 }
    breaker: { window: 5, open: 1ms }
"#;

/// The rows of a table, in pages.
async fn pages(world: &World, lane: &LaneKey, table: StoreTable) -> Vec<Vec<(RowKey, VersionedValue)>> {
    let range = table.range();
    let (mut from, end) = (RowKey::new(range.start.as_str()), RowKey::new(range.end.as_str()));
    let mut pages = Vec::new();
    loop {
        let page = world.store.scan(lane, from..end.clone(), 1000).await.expect("it can be read");
        let last = page.rows.last().filter(|_| page.has_more).map(|(last, _)| format!("{last}\0"));
        pages.push(page.rows);
        let Some(last) = last else { return pages };
        from = RowKey::new(&last);
    }
}

/// The row of the only call of an order.
async fn calls(world: &World) -> Vec<CallRow> {
    let lane = LaneKey::new(&format!("e:{TENANT}:{EFFECT}:0"));
    let key = |row: &VersionedValue| {
        RowKey::new(LaneRowKey::effect(decode(&row.value).expect("a command")).as_str())
    };
    let mut calls = Vec::new();
    for open in pages(world, &lane, StoreTable::EffectDue).await {
        let keys: Vec<_> = open.iter().map(|(_, row)| key(row)).collect();
        let rows = world.store.read(&lane, &keys).await.expect("it can be read");
        calls.extend(rows.into_iter().flatten().map(|row| decode::<CallRow>(&row.value).expect("a call")));
    }
    calls
}

/// Runs a test of this module in a process of its own, where what memory it takes is its alone; says whether this is that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    let output = program.args(["--exact", &format!("away::{test}"), "--nocapture"]).env(ALONE, "1").output();
    let output = output.expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}");
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_away_for_an_hour_is_named_and_gone_on_with() {
    if is_alone("an_upstream_that_is_away_for_an_hour_is_named_and_gone_on_with") {
        is_gone_on_with(World::in_a_directory().await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_away_for_an_hour_is_gone_on_with_over_redis() {
    if is_alone("an_upstream_that_is_away_for_an_hour_is_gone_on_with_over_redis") {
        let mut world = World::in_redis().await;
        world.store = HookedStore::over(Arc::clone(&world.store), ClockAhead(world.clock.clone()));
        is_gone_on_with(world).await;
    }
}

/// Has orders wait for an upstream for an hour, and end once it is back.
async fn is_gone_on_with(mut world: World) {
    let orders = number(ORDERS).unwrap_or(20);
    let address = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    world.apply(&CALLS.replace("ADDRESS", &address.to_string())).await;
    world.follow().await;
    let in_force = world.definitions.in_force();
    let (effect, tenant) = (EFFECT.parse().expect("a name"), TENANT.parse().expect("a tenant"));
    let (provider, _) = in_force.catalog.effect(&effect, &tenant).expect("it is in force");
    let ProviderTransport::Http(http) = &provider.transport else { panic!("it is one of HTTP") };
    let http =
        HttpProvider::new(http, Arc::new(Secrets::in_environment()), egress::TrustAnchors::from_system());
    world.own_effect(Arc::new(http.expect("a provider")));
    world.own();
    for order in 0..orders {
        let (id, data) = (format!("o-{order}"), format!("{{\"id\":\"o-{order}\"}}"));
        world.event("Order", &format!("p-{id}"), "OrderPlaced", &id, &data).await;
    }
    let attempts = async |world: &World| calls(world).await.iter().map(|call| call.attempts).sum::<u32>();
    let is_all = async || (calls(&world).await.len() == orders).then_some(());
    let patience = PATIENCE + Duration::from_millis(50) * u32::try_from(orders).expect("not so many");
    wait_until(is_all, patience, "all calls are open").await;
    let (before, _) = memory_kib(std::process::id());
    for minute in 0..60 {
        let before = attempts(&world).await;
        world.forward(Duration::from_secs(60));
        let is_tried = async || (attempts(&world).await > before).then_some(());
        wait_until(is_tried, PATIENCE, format!("it is tried in minute {minute}")).await;
    }
    let troubles = world.readiness.problems();
    assert!(
        matches!(troubles.as_slice(), [(name, _)] if name == "upstream of payment-reserve"),
        "{troubles:?}"
    );
    assert!(world.readiness.is_ready());
    let most = calls(&world).await.iter().map(|call| call.attempts).max();
    println!(
        "{orders} calls waited for an hour, with {} attempts, {most:?} at most of one",
        attempts(&world).await
    );
    let upstream = Upstream::start_at(&address.to_string());
    let begin = Instant::now();
    world.forward(Duration::from_secs(60));
    let is_called = async || (upstream.by_key().len() == orders).then_some(());
    wait_until(is_called, patience, "all calls are made").await;
    for order in 0..orders {
        world.wait_for(&format!("o-{order}"), "completed").await;
    }
    println!("they had ended {:?} after it was back", begin.elapsed());
    let (now, grown) = memory_kib(std::process::id());
    println!("{before} KiB before, {grown} KiB at most, {now} KiB now");
    assert!(grown < before + GROWTH_KIB_MAX, "it grew from {before} KiB to {grown}");
    assert_eq!(world.metrics.letters.get(), 0);
    assert_eq!(upstream.by_key().len(), orders);
    assert!(upstream.by_key().values().all(|(.., times)| *times == 1));
    assert_eq!(calls(&world).await, []);
    wait_until(async || world.readiness.problems().is_empty().then_some(()), PATIENCE, "it is well").await;
}

const COMMANDS: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: close }
steps:
  close: { command: { aggregate: Order, id: "${{ state.id }}", type: Close }, on_success: { end: completed } }
"#;

/// A gateway that answers nothing until it is back, and passes everything on then.
struct Away {
    is_back: Arc<AtomicBool>,
    then: Arc<dyn Gateway>,
}

#[async_trait]
impl Gateway for Away {
    async fn submit(&self, command: &AggregateCommand) -> GatewayAnswer {
        if self.is_back.load(Ordering::Relaxed) {
            return self.then.submit(command).await;
        }
        GatewayAnswer::Unknown { why: "it is away".to_owned() }
    }
}

/// Counts inputs that were applied.
fn applied(world: &World) -> u64 {
    let families = world.registry.gather();
    let family = families.iter().find(|family| family.name() == "mycora_saga_transitions_total");
    let is_applied = |metric: &&prometheus::proto::Metric| {
        metric.get_label().iter().any(|label| label.value() == "applied")
    };
    let metrics = family.into_iter().flat_map(|family| family.get_metric()).filter(is_applied);
    metrics.map(|metric| metric.get_counter().get_value() as u64).sum()
}

/// Counts the rows of the outbox.
async fn outbox(world: &World) -> usize {
    let lane = LaneKey::new(&format!("s:{TENANT}:order:0"));
    pages(world, &lane, StoreTable::Outbox).await.iter().map(Vec::len).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_away_stops_what_comes_in_at_a_limit() {
    let most = number(OUTBOX).unwrap_or(500);
    let mut world = World::simulated().await;
    world.outbox_rows_max = most;
    world.apply(COMMANDS).await;
    let tenants = "acme: { context: 1, quotas: { starts_per_sec: 100000 } }";
    let tenants = TenantRegistry::read("t", tenants).expect("good");
    let revision = world.definitions.in_force().revision;
    assert!(world.definitions.replace(None, Some(&tenants), revision, Vec::new()).await.expect("kept"));
    let is_back = Arc::new(AtomicBool::new(false));
    let gateway = Arc::new(Away { is_back: Arc::clone(&is_back), then: Arc::new(world.witness.clone()) });
    let owned = tokio::spawn(SagaLane { gateway, ..world.lane() }.own(CancellationToken::new()));
    let orders = most + 1500;
    for order in 0..orders {
        let (id, data) = (format!("o-{order}"), format!("{{\"id\":\"o-{order}\"}}"));
        world.event("Order", &format!("p-{id}"), "OrderPlaced", &id, &data).await;
    }
    // Facts go out; commands stay. What waited in lines when the limit was reached is committed.
    let is_full = async || (applied(&world) >= most as u64).then_some(());
    wait_until(is_full, 4 * PATIENCE, "the limit is reached").await;
    world.until_measured("mycora_saga_inputs_under_way 0").await;
    world.until_measured("mycora_saga_outbox_rows 0").await;
    let rows = outbox(&world).await;
    assert!((most..most + 700).contains(&rows), "{rows}");
    let troubles = world.readiness.problems();
    assert_eq!(troubles, [("gateway of aggregates".to_owned(), "it is away".to_owned())]);
    is_back.store(true, Ordering::Relaxed);
    let is_done = async || (applied(&world) == 2 * orders as u64).then_some(());
    let patience = 4 * PATIENCE + Duration::from_millis(20) * u32::try_from(orders).expect("not so many");
    wait_until(is_done, patience, "all commands are submitted").await;
    assert_eq!(world.witness.distinct_calls().len(), orders, "each once");
    wait_until(async || world.readiness.problems().is_empty().then_some(()), PATIENCE, "it is well").await;
    owned.abort();
}
