//! Requests of the operator to the server, over TLS.

use std::time::{Duration, SystemTime};

use identity::{Identity, ServiceName};
use proto::v1;
use rpc::ErrorView;
use testkit::{PATIENCE, wait_until};
use tonic::{Code, Request};

use crate::served::{ACME, ADMIN, OTHER, REPLICA, Served, ServiceOptions, Suite, refused};

fn drain(request_id: &str, tenant: &str, deadline_secs: Option<u32>) -> v1::SagaServiceDrainRequest {
    let (request_id, tenant_id) = (request_id.to_owned(), tenant.to_owned());
    v1::SagaServiceDrainRequest { request_id, tenant_id, deadline_secs }
}

async fn described(served: &Served) -> v1::GetSagaServerResponse {
    let answer = served.client(Identity::Admin).get_saga_server(v1::GetSagaServerRequest {}).await;
    answer.expect("described").into_inner()
}

/// Waits until the server owns so many lanes.
async fn until_lanes(served: &Served, lanes: u32) -> v1::GetSagaServerResponse {
    let wanted = || async { Some(described(served).await).filter(|server| server.lane_count == lanes) };
    wait_until(wanted, PATIENCE, format!("it owns {lanes} lanes")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_describes_itself_its_store_and_its_broker() {
    let served = Served::start().await;
    // Two lanes of each tenant.
    let server = until_lanes(&served, 4).await;
    assert_eq!((server.replica.as_str(), server.version.as_str()), (REPLICA, env!("CARGO_PKG_VERSION")));
    assert_eq!(server.roles, [i32::from(v1::SagaServerRole::Saga)]);
    assert_eq!((server.single_tenant, server.draining, server.drain_deadline_time), (false, false, None));
    assert_eq!((server.saga_count, server.effect_count), (1, 0));
    assert_eq!(server.problems, Vec::<String>::new());
    let store = server.store.expect("always told");
    assert!(store.version.starts_with("0."), "{store:?}");
    assert_eq!((store.kind.as_str(), store.shared, store.durability.as_str()), ("mdbx", false, "synced"));
    let broker = server.broker.expect("always told");
    assert!(broker.connected && broker.version.contains('.'), "{broker:?}");
    let [replica] = server.replicas.as_slice() else { panic!("one: {:?}", server.replicas) };
    assert_eq!((replica.name.as_str(), replica.version.as_str()), (REPLICA, env!("CARGO_PKG_VERSION")));
    assert_eq!(replica.roles, server.roles);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_methods_are_for_no_other_caller() {
    let served = Served::start().await;
    let not_allowed = (Code::PermissionDenied, "METHOD_NOT_ALLOWED".to_owned());
    for identity in [Identity::Actor(model::ActorId(ADMIN)), Identity::Service(ServiceName::Scheduler)] {
        let mut client = served.client(identity);
        assert_eq!(refused(client.get_saga_server(v1::GetSagaServerRequest {}).await), not_allowed);
        assert_eq!(refused(client.drain(drain("", "", None)).await), not_allowed);
        assert_eq!(refused(client.reload(v1::SagaServiceReloadRequest::default()).await), not_allowed);
        assert_eq!(refused(client.move_lane(v1::MoveLaneRequest::default()).await), not_allowed);
    }
    assert!(!served.drained.has_begun());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_of_one_tenant_gives_up_its_lanes_alone() {
    let served = Served::start().await;
    until_lanes(&served, 4).await;
    let mut operator = served.client(Identity::Admin);
    let unknown = operator.drain(drain("", "acme2", None)).await;
    assert_eq!(refused(unknown), (Code::NotFound, "NOT_FOUND".to_owned()));
    let with_deadline = operator.drain(drain("", ACME, Some(5))).await.expect_err("refused");
    assert_eq!(ErrorView::from(&with_deadline).violations[0].field, "deadline_secs");
    let mut named = Request::new(drain("", ACME, None));
    named.metadata_mut().insert("x-tenant-id", OTHER.parse().expect("ASCII"));
    let mismatch = (Code::InvalidArgument, "TENANT_MISMATCH".to_owned());
    assert_eq!(refused(operator.drain(named).await), mismatch);
    assert_eq!(described(&served).await.lane_count, 4);

    let answer = operator.drain(drain("d-1", ACME, None)).await.expect("begun").into_inner();
    assert_eq!(answer.drain_deadline_time, None);
    let server = until_lanes(&served, 2).await;
    assert!(!server.draining && !served.drained.has_begun());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_drain_keeps_the_first_deadline() {
    let served = Served::start().await;
    let mut operator = served.client(Identity::Admin);
    let too_long = operator.drain(drain("", "", Some(3601))).await;
    assert_eq!(refused(too_long).0, Code::InvalidArgument);
    let begin = SystemTime::now();
    let first = operator.drain(drain("d-1", "", Some(600))).await.expect("begun").into_inner();
    assert!(served.drained.has_begun());
    let deadline = first.drain_deadline_time.expect("of the whole server");
    let deadline = SystemTime::try_from(deadline).expect("a moment");
    let (earliest, latest) = (begin + Duration::from_secs(599), SystemTime::now() + Duration::from_secs(601));
    assert!(earliest < deadline && deadline < latest, "{deadline:?}");
    let again = operator.drain(drain("d-1", "", Some(600))).await.expect("the same").into_inner();
    assert_eq!(again.drain_deadline_time, first.drain_deadline_time);
    let other = operator.drain(drain("d-1", "", Some(1))).await;
    assert_eq!(refused(other), (Code::AlreadyExists, "REQUEST_ID_REUSED".to_owned()));
    // The deadline of the first one counts.
    let later = operator.drain(drain("d-2", "", Some(1))).await.expect("it drains").into_inner();
    assert_eq!(later.drain_deadline_time, first.drain_deadline_time);
    let server = described(&served).await;
    assert!(server.draining && server.drain_deadline_time == first.drain_deadline_time);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_drained_ends_well_and_is_not_drained_again_by_a_repeat() {
    let suite = Suite::start().await;
    let mut process = suite.process(None);
    let mut operator = process.client(&suite, Identity::Admin);
    operator.drain(drain("d-1", "", Some(10))).await.expect("begun");
    assert!(process.process.wait(PATIENCE).success(), "{}", process.process.output());
    let process = suite.process(None);
    let mut operator = process.client(&suite, Identity::Admin);
    let repeat = operator.drain(drain("d-1", "", Some(10))).await.expect("known").into_inner();
    assert_eq!(repeat.drain_deadline_time, None);
    let server = operator.get_saga_server(v1::GetSagaServerRequest {}).await.expect("it serves").into_inner();
    assert!(!server.draining);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_storage_the_operator_is_served_and_no_actor() {
    let served = Served::with(ServiceOptions { storage: false, ..ServiceOptions::default() }).await;
    assert_eq!(described(&served).await.problems, Vec::<String>::new());
    let request = v1::ListSagasRequest { tenant_id: ACME.to_owned(), ..Default::default() };
    let (code, reason) = refused(served.actor(ADMIN).list_sagas(request).await);
    assert_eq!(code, Code::Unauthenticated, "{reason}");
}
