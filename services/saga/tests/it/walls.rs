//! The walls between tenants, each taken away in turn: the same checks of the service notice every missing one.
//!
//! Nothing in the service can be switched off. A wall is taken away from the outside, by a broker or a store that stands between, or by
//! a tenants file that gives several tenants the same context.

use std::net::SocketAddr;

use async_trait::async_trait;
use broker::{
    BrokerError, BrokerVersion, CursorError, CursorProgress, CursorSpec, Deliveries, MessageBroker,
    PullLimit, StreamDelivery,
};
use proto::v1;
use saga::placement::SagaReplicaRole;
use store::{CommitOutcome, KvStore, LaneKey, RowBatch, StoreError};
use testkit::{PATIENCE, wait_until};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tonic::{Code, Status};
use workflow::WorkflowLane;
use workflow::subject::ConsumerSource;

use crate::hooked_broker::{BrokerHook, HookedBroker};
use crate::hooked_store::{HookedStore, StoreHook};
use crate::process::Upstream;
use crate::served::{ACME, ADMIN, Between, ELSEWHERE, OTHER, Rows, Served, ServiceOptions};
use crate::streams::publish_event_of;

/// Comes by an effect, a command, a timer and a dead letter.
const MANIFEST: &str = r#"
kind: Saga
name: order
version: 1
state: { id: text }
sources: [{ aggregate: Order }]
start: { on: OrderPlaced, set: { id: "${{ event.data.id }}" }, goto: pay }
steps:
  pay: { effect: pay, input: { order: "${{ state.id }}" }, on_success: { goto: act } }
  act:
    command: { aggregate: Order, id: "${{ state.id }}", type: Act, payload: { order: "${{ state.id }}" } }
    on_success: { goto: wait }
  wait:
    timers: { late: { after: 1h, raise: Late } }
    on: { Wrong: { dead_letter: "${{ event.data.id }} is wrong" }, Late: { end: failed } }
---
kind: EffectProvider
name: upstream
transport: http
http: { base_url: "http://ADDRESS", allow_hosts: ["ADDRESS"], private: true }
effects: { pay: { request: { method: POST, path: /pay, body: "${{ input }}" } } }
"#;
/// Both tenants in one context.
const ONE_CONTEXT: &str = "acme: { context: 1 }\nother: { context: 1 }\n";
/// Reported reason of a lane that was given a foreign message.
const STAYS_AWAY: &str = "it was given a message that its filter does not let through";
/// The tenants, and their admins.
const BOTH: [(&str, u32); 2] = [(ACME, ADMIN), (OTHER, ELSEWHERE)];

/// Which walls a broker takes away.
#[derive(Clone)]
enum Breach {
    /// Filters of consumers name no tenant.
    Filters,
    /// Besides, subjects of other tenants look like those of the reader's.
    FiltersAndSubjects,
    /// The consumer of this name has several filters, which a server may accept and ignore.
    SeveralFilters(String, SocketAddr),
}

/// Opens cursors with a breach.
struct LeakyCursors(Breach);

/// The tenant that a filter or a subject names.
fn tenant_of(subject: &str) -> &str {
    subject.split('.').nth(1).expect("the tenant")
}

/// Gives deliveries the subjects of one tenant.
struct Disguised {
    deliveries: Box<dyn Deliveries>,
    tenant: String,
}

#[async_trait]
impl Deliveries for Disguised {
    async fn next(&mut self, room: PullLimit) -> Result<StreamDelivery, CursorError> {
        let mut delivered = self.deliveries.next(room).await?;
        let foreign = format!("tenant.{}.", tenant_of(&delivered.subject));
        delivered.subject = delivered.subject.replacen(&foreign, &format!("tenant.{}.", self.tenant), 1);
        Ok(delivered)
    }

    fn progress(&self) -> watch::Receiver<CursorProgress> {
        self.deliveries.progress()
    }
}

#[async_trait]
impl BrokerHook for LeakyCursors {
    async fn open(
        &self,
        broker: &dyn MessageBroker,
        spec: &CursorSpec,
    ) -> Result<Box<dyn Deliveries>, BrokerError> {
        let tenant = tenant_of(&spec.filter);
        let everybody = spec.filter.replacen(&format!("tenant.{tenant}."), "tenant.*.", 1);
        let everybody = CursorSpec { filter: everybody, ..spec.clone() };
        match &self.0 {
            Breach::Filters => broker.open(&everybody).await,
            Breach::FiltersAndSubjects => {
                let deliveries = broker.open(&everybody).await?;
                Ok(Box::new(Disguised { deliveries, tenant: tenant.to_owned() }))
            }
            Breach::SeveralFilters(consumer, server) => {
                let deliveries = broker.open(spec).await?;
                if spec.consumer == *consumer {
                    plant(*server, spec).await;
                }
                Ok(deliveries)
            }
        }
    }
}

/// Puts a consumer of several filters into the place of one that was made.
async fn plant(server: SocketAddr, spec: &CursorSpec) {
    let CursorSpec { stream, consumer, filter, .. } = spec;
    let more = filter.replace(".Order.", ".Payment.");
    let config = format!(
        r#"{{"stream_name":"{stream}","config":{{"durable_name":"{consumer}","ack_policy":"explicit","deliver_policy":"all","max_ack_pending":256,"filter_subjects":["{filter}","{more}"]}}}}"#
    );
    let deleted = format!("$JS.API.CONSUMER.DELETE.{stream}.{consumer}");
    let made = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{consumer}");
    let mut connection = BufReader::new(TcpStream::connect(server).await.expect("the server"));
    connection.write_all(b"CONNECT {\"verbose\":false}\r\nSUB answer 1\r\n").await.expect("written");
    for (subject, request) in [(deleted, ""), (made, config.as_str())] {
        let publication = format!("PUB {subject} answer {}\r\n{request}\r\n", request.len());
        connection.write_all(publication.as_bytes()).await.expect("written");
        let mut line = String::new();
        while !line.starts_with("{\"type\"") {
            line.clear();
            assert!(connection.read_line(&mut line).await.expect("an answer") > 0, "it is closed");
        }
        assert!(!line.contains("\"error\""), "{line}");
    }
}

/// Names lanes without their tenants.
struct SharedLanes;

#[async_trait]
impl StoreHook for SharedLanes {
    async fn commit(&self, store: &dyn KvStore, batch: RowBatch) -> Result<CommitOutcome, StoreError> {
        store.commit(RowBatch { lane: self.lane(&batch.lane), ..batch }).await
    }

    fn lane(&self, lane: &LaneKey) -> LaneKey {
        let text = BOTH.iter().fold(lane.as_str().to_owned(), |text, (tenant, _)| {
            text.replacen(&format!(":{tenant}:"), ":everybody:", 1)
        });
        LaneKey::new(&text)
    }
}

/// Returns the text in the data of a tenant, and of no other.
fn data_of(tenant: &str) -> String {
    format!("data-of-{tenant}")
}

fn other_than(tenant: &str) -> &'static str {
    if tenant == ACME { OTHER } else { ACME }
}

/// Both tenants have the same events: of one id, of one correlation, of one aggregate. Those of the other tenant come first.
async fn publish_all(served: &Served) {
    for (number, kind) in [(1, "OrderPlaced"), (2, "Wrong")] {
        for tenant in [OTHER, ACME] {
            let data = format!(r#"{{"id":"{}"}}"#, data_of(tenant));
            let id = format!("e-{number}");
            publish_event_of(&*served.broker, tenant, "Order", &id, kind, ("o-1", &data)).await;
        }
    }
}

/// Everything that an admin of a tenant is shown.
pub(crate) async fn shown(served: &Served, actor: u32, tenant: &str) -> Result<String, Status> {
    let (mut client, tenant_id) = (served.actor(actor), tenant.to_owned());
    let mut all = Vec::new();
    let request = v1::ListSagasRequest { tenant_id: tenant_id.clone(), ..Default::default() };
    let sagas = client.list_sagas(request).await?.into_inner();
    for v1::Saga { saga, correlation_id, .. } in &sagas.sagas {
        let (saga, correlation_id) = (saga.clone(), correlation_id.clone());
        let (of, tenant_id) = ((saga, correlation_id), tenant_id.clone());
        let request = v1::GetSagaTimelineRequest {
            tenant_id: tenant_id.clone(),
            saga: of.0.clone(),
            correlation_id: of.1.clone(),
            ..Default::default()
        };
        all.push(format!("{:?}", client.get_saga_timeline(request).await?.into_inner()));
        let request = v1::ExplainSagaRequest { tenant_id, saga: of.0, correlation_id: of.1 };
        all.push(format!("{:?}", client.explain_saga(request).await?.into_inner()));
    }
    let request = v1::ListSagaTimersRequest { tenant_id: tenant_id.clone(), ..Default::default() };
    all.push(format!("{:?}", client.list_saga_timers(request).await?.into_inner()));
    let request = v1::ListEffectsRequest { tenant_id: tenant_id.clone(), ..Default::default() };
    for call in client.list_effects(request).await?.into_inner().calls {
        let (effect, command_id) = (call.effect, call.command_id);
        let request = v1::GetEffectRequest { tenant_id: tenant_id.clone(), effect, command_id };
        all.push(format!("{:?}", client.get_effect(request).await?.into_inner()));
    }
    let request = v1::ListSagaDeadLettersRequest { tenant_id: tenant_id.clone(), ..Default::default() };
    for letter in client.list_saga_dead_letters(request).await?.into_inner().dead_letters {
        let request = v1::GetSagaDeadLetterRequest { tenant_id: tenant_id.clone(), key: letter.key };
        let letter =
            client.get_saga_dead_letter(request).await?.into_inner().dead_letter.expect("it is given");
        all.push(format!("{letter:?} {}", String::from_utf8_lossy(&letter.message)));
    }
    let request = v1::ListLanesRequest { tenant_id: tenant_id.clone(), ..Default::default() };
    all.push(format!("{:?}", client.list_lanes(request).await?.into_inner()));
    let request = v1::ListSagaDefinitionsRequest { tenant_id, ..Default::default() };
    all.push(format!("{:?}", client.list_saga_definitions(request).await?.into_inner()));
    Ok(format!("{sagas:?}\n{}", all.join("\n")))
}

/// Lists the breaches of walls that can be seen now.
async fn breaches(served: &Served) -> Vec<String> {
    let mut found = Vec::new();
    if served.metric("foreign_messages_total") > 0.0 {
        found.push("a foreign message came".to_owned());
    }
    for (tenant, admin) in BOTH {
        let (other, foreign) = (other_than(tenant), data_of(other_than(tenant)));
        for lane in [format!("s:{tenant}:order:0"), format!("e:{tenant}:pay:0")] {
            let rows = served.rows_of(&lane).await;
            if rows.iter().any(|(_, value)| String::from_utf8_lossy(value).contains(&foreign)) {
                found.push(format!("rows of {lane} have data of {other}"));
            }
        }
        match shown(served, admin, tenant).await {
            Ok(shown) => {
                let secrets = [foreign.clone(), format!("tenant.{other}."), format!(":{other}:")];
                let leaked = secrets.iter().filter(|secret| shown.contains(*secret));
                found.extend(leaked.map(|secret| format!("{tenant} is shown {secret}")));
            }
            Err(status) => found.push(format!("{tenant} is shown nothing: {status}")),
        }
        let refused = shown(served, admin, other).await.map(drop).map_err(|status| status.code());
        if refused != Err(Code::NotFound) {
            found.push(format!("the admin of {tenant} asks for {other}: {refused:?}"));
        }
    }
    found
}

/// Returns true once both tenants have come to where the data end.
async fn is_over(served: &Served) -> bool {
    let mut is_over = true;
    for (tenant, _) in BOTH {
        let rows = served.rows_of(&format!("s:{tenant}:order:0")).await;
        is_over &= rows.iter().any(|(key, _)| key.starts_with("dead:"));
    }
    is_over
}

/// Looks until a wall is found to be gone, or everything has ended with all of them standing.
async fn judge(served: &Served) -> Vec<String> {
    publish_all(served).await;
    let looked = || async {
        let was_over = is_over(served).await;
        let found = breaches(served).await;
        (was_over || !found.is_empty()).then_some(found)
    };
    wait_until(looked, PATIENCE, "everything ends, or something is found").await
}

/// A service for both tenants, with one wall less.
async fn served(upstream: &Upstream, with: ServiceOptions<'_>) -> Served {
    let manifest = MANIFEST.replace("ADDRESS", &upstream.address);
    let role = SagaReplicaRole { sagas: true, effects: true };
    Served::with(ServiceOptions { manifest: &manifest, role, ..with }).await
}

fn leaky(breach: Breach) -> Option<Between<dyn MessageBroker>> {
    Some(Box::new(move |_, broker| HookedBroker::over(broker, LeakyCursors(breach))))
}

const STORES: [Rows; 2] = [Rows::Directory, Rows::Redis];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_walls_nothing_of_a_tenant_is_seen_by_another() {
    for rows in STORES {
        let upstream = Upstream::start();
        let served = served(&upstream, ServiceOptions { rows, ..ServiceOptions::default() }).await;
        assert_eq!(judge(&served).await, Vec::<String>::new(), "{rows:?}");
        // Each of them was called for, under a key of its own.
        assert_eq!(upstream.by_key().len(), 2);
        for (tenant, _) in BOTH {
            assert!(upstream.calls().iter().any(|call| call.body.contains(&data_of(tenant))));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tenants_in_filters_the_lane_stops_at_the_next_wall() {
    for rows in STORES {
        let upstream = Upstream::start();
        let broker = leaky(Breach::Filters);
        let served = served(&upstream, ServiceOptions { rows, broker, ..ServiceOptions::default() }).await;
        assert_eq!(judge(&served).await, ["a foreign message came"], "{rows:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_check_of_subjects_either_data_of_a_tenant_are_found_with_another() {
    for rows in STORES {
        let upstream = Upstream::start();
        let broker = leaky(Breach::FiltersAndSubjects);
        let served = served(&upstream, ServiceOptions { rows, broker, ..ServiceOptions::default() }).await;
        let found = judge(&served).await;
        // Whichever was looked at first after they came.
        let wanted = ["rows of s:acme:order:0 have data of other", "acme is shown data-of-other"];
        assert!(found.iter().any(|found| wanted.contains(&found.as_str())), "{found:?}");
        assert_eq!(served.metric("foreign_messages_total"), 0.0, "nothing was noticed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tenants_in_keys_data_of_a_tenant_are_found_with_another() {
    for rows in STORES {
        let upstream = Upstream::start();
        let store: Option<Between<dyn KvStore>> =
            Some(Box::new(|_, store| HookedStore::over(store, SharedLanes)));
        let served = served(&upstream, ServiceOptions { rows, store, ..ServiceOptions::default() }).await;
        let found = judge(&served).await;
        // Whichever was looked at first after they came.
        let wanted = [" have data of ", " is shown data-of-"];
        let is_it = |found: &String| wanted.iter().any(|wanted| found.contains(wanted));
        assert!(found.iter().any(is_it), "{rows:?} {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_contexts_of_their_own_admins_see_both_tenants() {
    let upstream = Upstream::start();
    let served =
        served(&upstream, ServiceOptions { tenants_file: ONE_CONTEXT, ..ServiceOptions::default() }).await;
    let found = judge(&served).await;
    assert!(found.contains(&"the admin of acme asks for other: Ok(())".to_owned()), "{found:?}");
}

/// Debian's nats-server 2.9.10 takes a consumer of several filters, and delivers everything to it. Newer ones keep to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_filters_are_ignored_stops_its_lane_and_no_other() {
    let upstream = Upstream::start();
    let source = ConsumerSource::Aggregate("Order".to_owned());
    let (tenant, saga) = (ACME.parse().expect("a tenant"), "order".parse().expect("a name"));
    let lane = WorkflowLane::Saga { tenant, saga, shard: 0 };
    let consumer = source.consumer(&lane);
    let broker: Between<dyn MessageBroker> = Box::new(|nats, broker| {
        HookedBroker::over(broker, LeakyCursors(Breach::SeveralFilters(consumer, nats.address())))
    });
    let served =
        served(&upstream, ServiceOptions { broker: Some(broker), ..ServiceOptions::default() }).await;
    let version = served.broker.server().expect("it is there").version.expect("a version");
    if version >= (BrokerVersion { major: 2, minor: 10, patch: 0 }) {
        assert_eq!(judge(&served).await, Vec::<String>::new(), "{version:?}");
        return;
    }
    assert_eq!(judge(&served).await, ["a foreign message came"], "{version:?}");
    let of_acme = async || shown(&served, ADMIN, ACME).await.ok()?.contains(STAYS_AWAY).then_some(());
    wait_until(of_acme, PATIENCE, "the admin is told what is wrong with the lane").await;
    let of_other = async || {
        let rows = served.rows_of("s:other:order:0").await;
        rows.iter().any(|(key, _)| key.starts_with("dead:")).then_some(())
    };
    wait_until(of_other, PATIENCE, "the other tenant goes on").await;
    assert_eq!(breaches(&served).await, ["a foreign message came"], "and nothing else of it");
    let missing = served.app.readiness().missing();
    let reported: Vec<_> = missing.iter().map(|(name, why)| (name.as_str(), why.as_str())).collect();
    assert_eq!(
        reported,
        [(
            "lanes",
            "1 stay away until a reload, each because it was given a message that its filter does not let through; \
             compare the consumer with its filter, then Reload has it taken"
        )]
    );
}
