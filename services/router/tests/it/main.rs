//! The router between services that speak the real protocols.

mod mail;

use std::sync::Arc;

use identity::{Identity, ServiceName};
use model::id::Uid;
use model::{Attempt, ContextUid, FlowUid, JobId, JobKey, Timestamp};
use proto::internal::v1 as wire;
use proto::internal::v1::exchange_request::Frame as ToGateway;
use proto::internal::v1::exchange_response::Frame as FromGateway;
use proto::internal::v1::gateway_link_service_server::{GatewayLinkService, GatewayLinkServiceServer};
use proto::internal::v1::message_store_service_server::{MessageStoreService, MessageStoreServiceServer};
use proto::internal::v1::registry_view_service_server::{RegistryViewService, RegistryViewServiceServer};
use proto::internal::v1::report_intake_service_server::{ReportIntakeService, ReportIntakeServiceServer};
use proto::internal::v1::take_request::Frame as ToStorage;
use proto::v1;
use router::{Config, Deps, DialScheduler};
use rpc::{Allow, Channel, LocalServer, MethodPolicy, Mount, MountBuilder};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// One stream of the router, as the service at its other end has it.
struct Link<In, Out> {
    incoming: Streaming<In>,
    outgoing: mpsc::UnboundedSender<Result<Out, Status>>,
}

impl<In, Out> Link<In, Out> {
    async fn send(&self, out: Out) {
        self.outgoing.send(Ok(out)).expect("the router listens");
    }

    async fn receive(&mut self) -> In {
        self.incoming.message().await.expect("no error").expect("no end")
    }
}

type Links<In, Out> = mpsc::UnboundedSender<Link<In, Out>>;
type Stream<Out> = UnboundedReceiverStream<Result<Out, Status>>;

fn accept<In, Out>(
    links: &Links<In, Out>,
    request: Request<Streaming<In>>,
) -> Result<Response<Stream<Out>>, Status> {
    let (outgoing, stream) = mpsc::unbounded_channel();
    let link = Link { incoming: request.into_inner(), outgoing };
    links.send(link).map_err(|_| Status::unavailable("the test is over"))?;
    Ok(Response::new(UnboundedReceiverStream::new(stream)))
}

/// A flow that the router wants made, and where the scheduler answers.
type Submit = (wire::SubmitForRequest, oneshot::Sender<Result<wire::SubmitForResponse, Status>>);

/// Plays every service around the router; the test holds the other ends.
#[derive(Clone)]
struct Around {
    storage: Links<wire::TakeRequest, wire::TakeResponse>,
    gateway: Links<wire::ExchangeRequest, wire::ExchangeResponse>,
    scheduler: Links<wire::ReportRequest, wire::ReportResponse>,
    submits: mpsc::UnboundedSender<Submit>,
    logs: mpsc::UnboundedSender<wire::AppendLogsRequest>,
    replicas: watch::Receiver<Vec<wire::SchedulerReplica>>,
}

#[tonic::async_trait]
impl MessageStoreService for Around {
    type TakeStream = Stream<wire::TakeResponse>;
    type WatchSchedulersStream = Stream<wire::WatchSchedulersResponse>;
    async fn watch_schedulers(
        &self,
        _: Request<wire::WatchSchedulersRequest>,
    ) -> Result<Response<Self::WatchSchedulersStream>, Status> {
        let (sender, stream) = mpsc::unbounded_channel();
        let mut replicas = self.replicas.clone();
        replicas.mark_changed();
        tokio::spawn(async move {
            while replicas.changed().await.is_ok() {
                let replicas = replicas.borrow_and_update().clone();
                if sender.send(Ok(wire::WatchSchedulersResponse { replicas })).is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
    async fn take(
        &self,
        request: Request<Streaming<wire::TakeRequest>>,
    ) -> Result<Response<Self::TakeStream>, Status> {
        accept(&self.storage, request)
    }
    async fn append_logs(
        &self,
        request: Request<wire::AppendLogsRequest>,
    ) -> Result<Response<wire::AppendLogsResponse>, Status> {
        self.logs.send(request.into_inner()).expect("the test holds the other end");
        Ok(Response::new(wire::AppendLogsResponse {}))
    }
}

#[tonic::async_trait]
impl GatewayLinkService for Around {
    type ExchangeStream = Stream<wire::ExchangeResponse>;
    async fn exchange(
        &self,
        request: Request<Streaming<wire::ExchangeRequest>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        accept(&self.gateway, request)
    }
}

#[tonic::async_trait]
impl ReportIntakeService for Around {
    type ReportStream = Stream<wire::ReportResponse>;
    async fn report(
        &self,
        request: Request<Streaming<wire::ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        accept(&self.scheduler, request)
    }
    async fn submit_for(
        &self,
        request: Request<wire::SubmitForRequest>,
    ) -> Result<Response<wire::SubmitForResponse>, Status> {
        let (answer, answered) = oneshot::channel();
        self.submits.send((request.into_inner(), answer)).expect("the test holds the other end");
        answered.await.expect("the test answers").map(Response::new)
    }
}

#[tonic::async_trait]
impl RegistryViewService for Around {
    type WatchStream = Stream<wire::WatchResponse>;
    type ReportPresenceStream = Stream<wire::ReportPresenceResponse>;
    async fn watch(&self, _: Request<wire::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, stream) = mpsc::unbounded_channel();
        let runner =
            v1::Runner { id: 1, live: true, address: "grpc://host-a:7706".into(), ..Default::default() };
        let runners = vec![wire::ViewedRunner { context_id: 1, runner: Some(runner) }];
        sender
            .send(Ok(wire::WatchResponse { runners, snapshot_end: true, gone: Vec::new() }))
            .expect("held here");
        tokio::spawn(async move { sender.closed().await });
        Ok(Response::new(UnboundedReceiverStream::new(stream)))
    }
    async fn report_presence(
        &self,
        _: Request<Streaming<wire::ReportPresenceRequest>>,
    ) -> Result<Response<Self::ReportPresenceStream>, Status> {
        Err(Status::unimplemented("routers do not report presence"))
    }
}

/// The router with the services around it.
struct Suite {
    storage: mpsc::UnboundedReceiver<Link<wire::TakeRequest, wire::TakeResponse>>,
    gateway: mpsc::UnboundedReceiver<Link<wire::ExchangeRequest, wire::ExchangeResponse>>,
    scheduler: mpsc::UnboundedReceiver<Link<wire::ReportRequest, wire::ReportResponse>>,
    /// Another replica, which nobody names at first.
    other: mpsc::UnboundedReceiver<Link<wire::ReportRequest, wire::ReportResponse>>,
    replicas: watch::Sender<Vec<wire::SchedulerReplica>>,
    submits: mpsc::UnboundedReceiver<Submit>,
    logs: mpsc::UnboundedReceiver<wire::AppendLogsRequest>,
    ready: tokio::sync::watch::Receiver<bool>,
    metrics: prometheus::Registry,
    shutdown: CancellationToken,
    _servers: [LocalServer; 5],
}

fn serve(name: &'static str, add: impl FnOnce(MountBuilder) -> MountBuilder) -> (LocalServer, Channel) {
    let allowed: &[Allow] = &[Allow::Service(ServiceName::Router)];
    let rows = ["MessageStore", "GatewayLink", "ReportIntake", "RegistryView"]
        .map(|service| format!("/mycora.internal.v1.{service}Service/*"));
    let rows: Vec<_> = rows.iter().map(|row| (row.as_str(), allowed)).collect();
    let policy = MethodPolicy::new(&[&rows]).expect("well-formed");
    let server = LocalServer::new(name);
    let mount = add(Mount::builder(policy)).build().expect("covered");
    mount.health().set_serving(true);
    server.publish(&mount);
    let channel = Channel::local(server.handle(), Identity::Service(ServiceName::Router));
    (server, channel)
}

impl Suite {
    fn start() -> Self {
        let (storage_links, storage) = mpsc::unbounded_channel();
        let (gateway_links, gateway) = mpsc::unbounded_channel();
        let (scheduler_links, scheduler) = mpsc::unbounded_channel();
        let (other_links, other) = mpsc::unbounded_channel();
        let (log_sender, logs) = mpsc::unbounded_channel();
        let (submit_sender, submits) = mpsc::unbounded_channel();
        let replicas = watch::Sender::new(vec![replica("a")]);
        let around = Around {
            storage: storage_links,
            gateway: gateway_links,
            scheduler: scheduler_links,
            logs: log_sender,
            submits: submit_sender,
            replicas: replicas.subscribe(),
        };
        let (a, to_storage) =
            serve("storage", |mount| mount.service(MessageStoreServiceServer::new(around.clone())));
        let (b, to_gateway) =
            serve("gateway", |mount| mount.service(GatewayLinkServiceServer::new(around.clone())));
        let (c, to_scheduler) =
            serve("scheduler", |mount| mount.service(ReportIntakeServiceServer::new(around.clone())));
        let second = Around { scheduler: other_links, ..around.clone() };
        let (d, to_other) = serve("other", |mount| mount.service(ReportIntakeServiceServer::new(second)));
        let (e, to_registry) =
            serve("registry", |mount| mount.service(RegistryViewServiceServer::new(around)));
        let schedulers: DialScheduler = Arc::new(move |replica| {
            Ok(if replica.address == "at-a" { to_scheduler.clone() } else { to_other.clone() })
        });
        let metrics = prometheus::Registry::new();
        let deps = Deps {
            storage: to_storage,
            gateway: to_gateway,
            schedulers,
            registry: to_registry,
            clock: Arc::new(|| Timestamp::from_millis(1_000_000)),
            metrics: &metrics,
        };
        let app = Config { name: "router-1".into(), ..Config::default() }.build(deps).expect("built");
        let (ready, shutdown) = (app.readiness().subscribe(), CancellationToken::new());
        tokio::spawn(app.run(shutdown.clone()));
        Self {
            storage,
            gateway,
            scheduler,
            other,
            replicas,
            submits,
            logs,
            ready,
            metrics,
            shutdown,
            _servers: [a, b, c, d, e],
        }
    }

    /// How many deliveries were measured.
    fn measured(&self) -> u64 {
        let families = self.metrics.gather();
        let family = families.iter().find(|family| family.name() == "mycora_router_delivery_seconds");
        family.expect("it is registered").get_metric()[0].get_histogram().get_sample_count()
    }

    async fn storage(&mut self) -> Link<wire::TakeRequest, wire::TakeResponse> {
        let mut link = self.storage.recv().await.expect("the router comes");
        let hello = wire::TakeHello { router: "router-1".into() };
        assert_eq!(link.receive().await.frame, Some(ToStorage::Hello(hello)));
        link
    }

    async fn gateway(&mut self) -> Link<wire::ExchangeRequest, wire::ExchangeResponse> {
        self.gateway.recv().await.expect("the router comes")
    }

    async fn other(&mut self) -> Link<wire::ReportRequest, wire::ReportResponse> {
        self.other.recv().await.expect("the router comes")
    }

    async fn scheduler(&mut self) -> Link<wire::ReportRequest, wire::ReportResponse> {
        self.scheduler.recv().await.expect("the router comes")
    }
}

impl Drop for Suite {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn replica(name: &str) -> wire::SchedulerReplica {
    wire::SchedulerReplica { name: name.to_owned(), address: format!("at-{name}") }
}

/// A report about a job of a flow.
fn report(report_id: u64, flow: u128) -> wire::NumberedReport {
    let report = model::NodeReport {
        job_key: JobKey { flow: FlowUid(Uid::from_bits(flow)), ..key(1) },
        context_id: model::ContextId(1),
        flow_id: model::FlowId(3),
        source: None,
        kind: model::ReportKind::Returned,
    };
    wire::NumberedReport { report_id, report_json: serde_json::to_vec(&report).expect("JSON").into() }
}

fn key(job: u32) -> JobKey {
    JobKey {
        context: ContextUid(Uid::from_bits(1)),
        flow: FlowUid(Uid::from_bits(2)),
        job: JobId(job),
        attempt: Attempt(1),
    }
}

fn held(job: u32) -> wire::TakeResponse {
    let message = wire::HeldMessage {
        context_id: 1,
        context_uid: key(1).context.to_string(),
        message_key: format!("message:7:{job}"),
        flow_id: 3,
        runner_id: 1,
        timeout_ack_secs: 60,
        nodes: vec![format!(r#"{{"job_key":"{}","context_id":1,"flow_id":1}}"#, key(job)).into()],
        created_millis: 1_000_000,
        kind: None,
    };
    wire::TakeResponse { messages: vec![message], ..Default::default() }
}

fn from_gateway(frame: FromGateway) -> wire::ExchangeResponse {
    wire::ExchangeResponse { frame: Some(frame) }
}

async fn delivery(gateway: &mut Link<wire::ExchangeRequest, wire::ExchangeResponse>) -> wire::Deliver {
    match gateway.receive().await.frame {
        Some(ToGateway::Deliver(deliver)) => deliver,
        other => panic!("{other:?}"),
    }
}

fn settled(job: u32, error: &str) -> wire::TakeRequest {
    settled_with(job, error, 0)
}

fn settled_with(job: u32, error: &str, flow_id: u32) -> wire::TakeRequest {
    let (message_key, error) = (format!("message:7:{job}"), error.to_owned());
    let settlement = wire::Settlement { context_id: 1, message_key, error, flow_id };
    wire::TakeRequest { frame: Some(ToStorage::Settle(wire::Settle { settlements: vec![settlement] })) }
}

fn outcome(delivery_id: u64, error: &str) -> wire::ExchangeResponse {
    let outcome = wire::DeliveryOutcome { delivery_id, error: error.to_owned(), ..Default::default() };
    from_gateway(FromGateway::Outcome(outcome))
}

#[tokio::test]
async fn messages_go_out_and_reports_come_back() {
    let mut suite = Suite::start();
    let mut storage = suite.storage().await;
    let (mut gateway, mut scheduler) = (suite.gateway().await, suite.scheduler().await);
    suite.ready.wait_for(|ready| *ready).await.expect("it runs");

    storage.send(held(1)).await;
    let deliver = delivery(&mut gateway).await;
    assert_eq!((deliver.address.as_str(), deliver.nodes.len()), ("grpc://host-a:7706", 1));
    assert_eq!(suite.measured(), 0, "no supervisor has answered");
    gateway.send(outcome(deliver.delivery_id, "")).await;
    assert_eq!(storage.receive().await, settled(1, ""));
    assert_eq!(suite.measured(), 1);

    let sent_report = report(40, 2);
    gateway
        .send(from_gateway(FromGateway::Reports(wire::Reports { reports: vec![sent_report.clone()] })))
        .await;
    let passed_on = scheduler.receive().await.reports;
    assert_eq!(passed_on[0].report_json, sent_report.report_json);
    let handled = vec![passed_on[0].report_id];
    scheduler.send(wire::ReportResponse { handled, ..Default::default() }).await;
    let acknowledged = ToGateway::Handled(wire::ReportsHandled { report_ids: vec![40] });
    assert_eq!(gateway.receive().await.frame, Some(acknowledged));

    let log = wire::NumberedLog { report_id: 41, data: "out".into(), offset: 5, ..Default::default() };
    gateway.send(from_gateway(FromGateway::Logs(wire::Logs { logs: vec![log] }))).await;
    let kept = suite.logs.recv().await.expect("handed over");
    assert_eq!((kept.chunks[0].offset, &kept.chunks[0].data[..]), (5, &b"out"[..]));
    let acknowledged = ToGateway::Handled(wire::ReportsHandled { report_ids: vec![41] });
    assert_eq!(gateway.receive().await.frame, Some(acknowledged));

    let stop = wire::StopCommand {
        context_id: 1,
        flow_id: 3,
        runner_id: 1,
        job_key: key(1).to_string(),
        grace_secs: 2,
        ..Default::default()
    };
    scheduler.send(wire::ReportResponse { stops: vec![stop], ..Default::default() }).await;
    match gateway.receive().await.frame {
        Some(ToGateway::Stop(stop)) => assert_eq!((stop.job_key, stop.grace_secs), (key(1).to_string(), 2)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn lost_streams_lose_nothing() {
    let mut suite = Suite::start();
    let storage = suite.storage().await;
    let (mut gateway, mut scheduler) = (suite.gateway().await, suite.scheduler().await);

    // The gateway goes while a delivery is under way.
    storage.send(held(1)).await;
    delivery(&mut gateway).await;
    drop(gateway);
    let mut gateway = suite.gateway().await;
    let again = delivery(&mut gateway).await;
    assert_eq!(again.nodes.len(), 1);

    // Storage goes before the settlement, and gives the message again.
    drop(storage);
    let mut storage = suite.storage().await;
    storage.send(held(1)).await;
    storage.send(held(2)).await;
    let next = delivery(&mut gateway).await;
    assert_eq!(next.nodes, held(2).messages[0].nodes, "the first is under way already");
    gateway.send(outcome(again.delivery_id, "")).await;
    assert_eq!(storage.receive().await, settled(1, ""), "once, although it was given twice");

    // Storage goes before it has read the settlement.
    drop(storage);
    let mut storage = suite.storage().await;
    storage.send(held(1)).await;
    assert_eq!(storage.receive().await, settled(1, ""), "again, and nothing is sent");

    // The scheduler goes before it acknowledges.
    let reports = vec![report(7, 2)];
    gateway.send(from_gateway(FromGateway::Reports(wire::Reports { reports }))).await;
    let first = scheduler.receive().await.reports;
    drop(scheduler);
    let mut scheduler = suite.scheduler().await;
    assert_eq!(scheduler.receive().await.reports, first);
    let handled = vec![first[0].report_id];
    scheduler.send(wire::ReportResponse { handled, ..Default::default() }).await;
    let acknowledged = ToGateway::Handled(wire::ReportsHandled { report_ids: vec![7] });
    assert_eq!(gateway.receive().await.frame, Some(acknowledged));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_delivered_is_reported_and_then_settled() {
    let mut suite = Suite::start();
    let mut storage = suite.storage().await;
    let (mut gateway, mut scheduler) = (suite.gateway().await, suite.scheduler().await);
    storage.send(held(1)).await;
    let begin = tokio::time::Instant::now();
    let reports_of = |kind| {
        let (context_id, flow_id) = (model::ContextId(1), model::FlowId(3));
        let report = model::NodeReport { job_key: key(1), context_id, flow_id, source: None, kind };
        let report_json = serde_json::to_vec(&report).expect("JSON").into();
        let reports = vec![wire::NumberedReport { report_id: 1, report_json }];
        from_gateway(FromGateway::Reports(wire::Reports { reports }))
    };
    let (mut queried_after, mut stops) = (0, 0);
    let reports = loop {
        tokio::select! {
            request = gateway.receive() => match request.frame {
                Some(ToGateway::Deliver(deliver)) => {
                    gateway.send(outcome(deliver.delivery_id, "no answer")).await;
                }
                Some(ToGateway::Query(query)) => {
                    assert_eq!(query.job_keys, [key(1).to_string()], "a try may have arrived");
                    queried_after = begin.elapsed().as_secs();
                    gateway.send(reports_of(model::ReportKind::Unknown)).await;
                }
                Some(ToGateway::Stop(stop)) => {
                    assert_eq!(stop.job_key, key(1).to_string());
                    stops += 1;
                    // The first answer is lost.
                    if stops == 2 {
                        let json = r#"{"kind":"ended","outcome":"stopped","end_time":7}"#;
                        gateway.send(reports_of(serde_json::from_str(json).expect("an end"))).await;
                    }
                }
                Some(ToGateway::Handled(_)) => {}
                other => panic!("{other:?}"),
            },
            intake = scheduler.receive() => break intake.reports,
        }
    };
    assert_eq!((queried_after, stops), (60, 2), "tried until its time was over");
    let report: model::NodeReport = serde_json::from_slice(&reports[0].report_json).expect("a report");
    assert_eq!(report.job_key, key(1));
    let handled = vec![reports[0].report_id];
    scheduler.send(wire::ReportResponse { handled, ..Default::default() }).await;
    assert_eq!(storage.receive().await, settled(1, "TIMEOUT_ACK: no answer"));
}

#[tokio::test(start_paused = true)]
async fn schedulers_come_and_go_and_no_report_is_lost() {
    let mut suite = Suite::start();
    let _storage = suite.storage().await;
    let (mut gateway, mut first) = (suite.gateway().await, suite.scheduler().await);
    let flows = 1..=40_u64;
    let reports = flows.clone().map(|flow| report(flow, flow.into())).collect();
    gateway.send(from_gateway(FromGateway::Reports(wire::Reports { reports }))).await;
    let received = first.receive().await.reports;
    assert_eq!(received.len(), 40, "one replica owns all flows");

    suite.replicas.send_replace(vec![replica("a"), replica("b")]);
    let mut second = suite.other().await;
    let moved = second.receive().await.reports;
    assert!((5..35).contains(&moved.len()), "{}", moved.len());

    // Both are gone, and for a while there is nobody.
    suite.replicas.send_replace(Vec::new());
    drop((first, second));
    let reports = vec![report(41, 41)];
    gateway.send(from_gateway(FromGateway::Reports(wire::Reports { reports }))).await;
    suite.ready.wait_for(|ready| !*ready).await.expect("it runs");
    suite.replicas.send_replace(vec![replica("b")]);
    let mut second = suite.other().await;
    let received = second.receive().await.reports;
    assert_eq!(received.len(), 41);
    suite.ready.wait_for(|ready| *ready).await.expect("it runs");

    // Questions and stops come from any of them.
    suite.replicas.send_replace(vec![replica("a"), replica("b")]);
    let mut first = suite.scheduler().await;
    for (replica, job) in [(&first, 1), (&second, 2)] {
        let job_keys = vec![key(job).to_string()];
        let query = wire::StatusQuery { context_id: 1, flow_id: 3, runner_id: 1, job_keys: job_keys.clone() };
        replica.send(wire::ReportResponse { queries: vec![query], ..Default::default() }).await;
        match gateway.receive().await.frame {
            Some(ToGateway::Query(query)) => assert_eq!(query.job_keys, job_keys),
            other => panic!("{other:?}"),
        }
    }

    // A log is read for the replica that asks, whoever owns the flow.
    for (replica, query_id) in [(&mut first, 5), (&mut second, 5)] {
        let query = wire::LogQuery { query_id, context_id: 1, runner_id: 1, offset: 7, ..Default::default() };
        replica.send(wire::ReportResponse { log_queries: vec![query], ..Default::default() }).await;
        let Some(ToGateway::ReadLog(read)) = gateway.receive().await.frame else {
            panic!("a request to read")
        };
        assert_eq!((read.address.as_str(), read.offset), ("grpc://host-a:7706", 7));
        let piece = wire::LogPiece { offset: 7, data: "out".into(), next_offset: 10 };
        let reading = Some(wire::LogReading { result: Some(wire::log_reading::Result::Piece(piece)) });
        let outcome = wire::LogOutcome { read_id: read.read_id, reading: reading.clone() };
        gateway.send(from_gateway(FromGateway::LogRead(outcome))).await;
        let answers = loop {
            let response = replica.receive().await;
            if !response.log_answers.is_empty() {
                break response.log_answers;
            }
        };
        assert_eq!(answers, [wire::LogAnswer { query_id, reading }]);
    }
}

#[tokio::test(start_paused = true)]
async fn contexts_are_dropped() {
    let mut suite = Suite::start();
    let mut storage = suite.storage().await;
    let mut gateway = suite.gateway().await;
    let context_drop = wire::ContextDrop {
        context_id: 1,
        context_uid: key(1).context.to_string(),
        runner_id: 1,
        address: "grpc://host-a:7706".into(),
        topic: "supervisor.rpc".into(),
    };
    let drop_request = wire::TakeResponse { drops: vec![context_drop.clone()], ..Default::default() };
    storage.send(drop_request.clone()).await;
    let begin = tokio::time::Instant::now();
    let answer =
        ToStorage::Dropped(wire::ContextDropped { context_uid: context_drop.context_uid, runner_id: 1 });
    let answer = wire::TakeRequest { frame: Some(answer) };
    let answered = loop {
        tokio::select! {
            drop_request = gateway.receive() => match drop_request.frame {
                Some(ToGateway::Drop(drop)) => {
                    let outcome = wire::DropOutcome { drop_id: drop.drop_id, error: "not connected".into() };
                    gateway.send(from_gateway(FromGateway::Dropped(outcome))).await;
                }
                other => panic!("{other:?}"),
            },
            received = storage.receive() => break received,
        }
    };
    assert_eq!(answered, answer);
    assert!((300..315).contains(&begin.elapsed().as_secs()), "given up after {:?}", begin.elapsed());
    storage.send(drop_request).await;
    assert_eq!(storage.receive().await, answer, "repeated, in case it was lost");
}

#[tokio::test(start_paused = true)]
async fn two_routers_of_one_name_do_not_evict_each_other_for_ever() {
    let mut suite = Suite::start();
    let mut comes = Vec::new();
    let begin = tokio::time::Instant::now();
    for _ in 0..6 {
        let link = suite.storage().await;
        comes.push(begin.elapsed().as_secs());
        // Another router has come: storage ends this one's stream.
        drop(link);
    }
    assert!(comes[2] < 5 && comes[3] >= 60 && comes[5] < 70, "{comes:?}");
}
