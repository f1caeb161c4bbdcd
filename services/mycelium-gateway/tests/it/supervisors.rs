//! Admission of supervisors: by the key of the runner record, or by node where the record says plain.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use identity::{Identity, ServiceName, SigningKey};
use model::supervision::{COORDINATOR_TOPIC, JobAccepted, SUPERVISOR_TOPIC, method};
use model::{Presence, ReportKind, limits};
use mycelium::json_rpc::answer;
use mycelium::{
    Bus, BusDestination, BusPeers, CallError, JsonRpcCall, JsonRpcError, JsonRpcHandler, JsonRpcPeer,
    JsonRpcRequest, JsonRpcResult, MemoryNetwork, PayloadForm, PeerEndpoint, PublicKey, Unguarded,
};
use proto::internal::v1 as wire;
use proto::internal::v1::exchange_request::Frame;
use proto::v1;
use proto::v1::gateway_service_client::GatewayServiceClient;
use rpc::{Channel, ErrorView};
use testkit::{PATIENCE, wait_until};
use tokio::sync::mpsc;
use tonic::Code;

use crate::conversation::accepted;
use crate::coordinator::{Coordinator, CoordinatorOptions};
use crate::suite::{Front, Router, Suite, execution, key};

/// Returns the gateway's description of the only supervisor.
pub(crate) async fn peer(channel: Channel) -> v1::Peer {
    let gateway = GatewayServiceClient::new(channel).get_gateway(v1::GetGatewayRequest {}).await;
    gateway.expect("allowed").into_inner().peers.remove(0)
}

async fn a_pinned_key_is_the_only_one(front: Front) {
    let (suite, _worker) = Suite::start(front).await;
    let mut router = suite.router().await;
    router.says(suite.deliver(1, &[execution(1)])).await;
    assert_eq!(router.outcome(1).await, "");

    let other = SigningKey::generate().verifying_key().to_string();
    suite.registry.change(|runner| runner.signing_key.clone_from(&other));
    let refused = async || {
        let peer = peer(suite.channel(Identity::Admin)).await;
        (!peer.connected && peer.last_error.contains("PINNED_KEY")).then_some(peer.last_error)
    };
    let error = wait_until(refused, PATIENCE, "the supervisor is not who is meant").await;
    let own = SigningKey::load(&suite.work_dir.path().join("signing.key")).expect("its key");
    let own = own.verifying_key().to_string();
    assert!(error.contains(&own) && error.contains(&other), "{error}");
    router.says(suite.deliver(2, &[execution(2)])).await;
    let error = router.outcome(2).await;
    assert!(error.contains("PINNED_KEY"), "{error}");

    suite.registry.change(|runner| runner.signing_key = own);
    let connected = async || peer(suite.channel(Identity::Admin)).await.connected.then_some(());
    wait_until(connected, PATIENCE, "the supervisor is who is meant").await;
    router.says(suite.deliver(3, &[execution(2)])).await;
    assert_eq!(router.outcome(3).await, "");
    router.report(key(2), accepted).await;
}

#[tokio::test]
async fn a_pinned_key_is_the_only_one_over_a_stream() {
    a_pinned_key_is_the_only_one(Front::Stream).await;
}

#[tokio::test]
async fn a_pinned_key_is_the_only_one_over_the_bus() {
    a_pinned_key_is_the_only_one(Front::Bus).await;
}

/// Requests that a node was sent: methods and parameters.
type Requests = mpsc::UnboundedReceiver<(String, serde_json::Value)>;

/// Accepts every job that comes with its secret, if it has one; tells what it was sent.
struct OldSupervisor {
    sender: mpsc::UnboundedSender<(String, serde_json::Value)>,
    secret: Option<&'static str>,
}

impl JsonRpcHandler for OldSupervisor {
    fn handle(
        &self,
        _: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let answers = requests.iter().map(|request| {
            let params: serde_json::Value = serde_json::from_str(request.params.get()).expect("JSON");
            let is_known = self.secret.is_none_or(|secret| params["secret"] == secret);
            self.sender.send((request.method.clone(), params)).ok();
            if !is_known {
                return Err(JsonRpcError::refused("FORBIDDEN", true, "another secret"));
            }
            match request.method.as_str() {
                method::SUPERVISOR_INFO => answer(&Presence {
                    supervisor: "old".into(),
                    version: "0".into(),
                    instances: Vec::new(),
                    queued: 0,
                    draining: false,
                }),
                _ => answer(&JobAccepted { accepted: true, supervisor: "old".into() }),
            }
        });
        let answers = answers.collect();
        Box::pin(async move { answers })
    }
}

/// A node of the bus that speaks plain JSON-RPC.
fn old_supervisor(bus: Arc<dyn Bus>) -> (BusPeers, Requests) {
    old_supervisor_with(bus, None)
}

/// Starts an old supervisor that rejects requests without its secret.
fn old_supervisor_with(bus: Arc<dyn Bus>, secret: Option<&'static str>) -> (BusPeers, Requests) {
    let (sender, requests) = mpsc::unbounded_channel();
    let inbox = bus.listen(SUPERVISOR_TOPIC).expect("free");
    let handler = Arc::new(OldSupervisor { sender, secret });
    let side = move |_| PeerEndpoint { handler: handler.clone(), guard: Arc::new(Unguarded) };
    let peers = BusPeers::new(bus, Arc::new(side));
    let listening = peers.clone();
    tokio::spawn(async move { listening.run(inbox, COORDINATOR_TOPIC).await });
    (peers, requests)
}

fn jobs(address: &str, delivery_id: u64, job: u32) -> Frame {
    Frame::Deliver(wire::Deliver {
        delivery_id,
        address: address.to_owned(),
        topic: SUPERVISOR_TOPIC.into(),
        context_id: 1,
        context_uid: key(1).context.to_string(),
        nodes: vec![serde_json::to_vec(&execution(job)).expect("JSON").into()],
        timeout_millis: 20_000,
    })
}

#[tokio::test]
async fn a_plain_supervisor_is_sent_its_secret_and_known_by_its_node() {
    let network = MemoryNetwork::default();
    let [ours, theirs, stranger] = [(); 3].map(|()| Arc::new(network.node(PublicKey::random())));
    let address = format!("mycelium:{}", theirs.key());
    let (old, mut requests) = old_supervisor(theirs.clone());
    let secrets = tempfile::tempdir().expect("a directory");
    let runner = v1::Runner {
        id: 1,
        address: address.clone(),
        topic: SUPERVISOR_TOPIC.into(),
        envelope: v1::EnvelopeForm::Plain.into(),
        secret_ref: "machine-1".into(),
        ..Default::default()
    };
    let with = CoordinatorOptions {
        bus: Some(ours.clone()),
        secrets_dir: Some(secrets.path().to_owned()),
        runner,
        ..CoordinatorOptions::default()
    };
    let here = Coordinator::start(with).await;
    let channel = here.channel(Identity::Service(ServiceName::Router));
    let mut router = Router::over(channel, &address).await;
    router.says(jobs(&address, 1, 1)).await;
    let error = router.outcome(1).await;
    assert!(error.contains("the secret `machine-1` cannot be read"), "{error}");
    assert!(requests.try_recv().is_err(), "nothing goes without it");

    let file = secrets.path().join("machine-1");
    std::fs::write(&file, "open sesame\n").expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("changed");
    let there = async || peer(here.channel(Identity::Admin)).await.connected.then_some(());
    wait_until(there, PATIENCE, "the supervisor answers").await;
    router.says(jobs(&address, 2, 1)).await;
    assert_eq!(router.outcome(2).await, "");
    assert_eq!(
        router.report(key(1), |kind| accepted(kind).map(|()| kind.clone())).await,
        ReportKind::Accepted { supervisor: "old".into() }
    );
    let (first, info) = requests.recv().await.expect("it was asked who it is");
    assert_eq!((first.as_str(), &info["secret"]), (method::SUPERVISOR_INFO, &"open sesame".into()));
    let (second, job) = requests.recv().await.expect("it was sent the job");
    assert_eq!((second.as_str(), &job["secret"]), (method::JOB_RUN, &"open sesame".into()));
    assert_eq!(job["job_key"], key(1).to_string());

    // What it says is heard, plainly; what another node says plainly is not, nor is this one answered for it.
    let to = BusDestination::Key(ours.key());
    let presence = serde_json::json!({ "supervisor": "old", "version": "0", "instances": [], "queued": 3 });
    let say_this = async |from: &BusPeers, presence: &serde_json::Value, wait| {
        let peer = from.peer_in(to, COORDINATOR_TOPIC, PayloadForm::Plain).await.expect("known");
        let call = JsonRpcCall::new(method::SUPERVISOR_PRESENCE, presence).expect("JSON");
        peer.call_batch(vec![call], wait).await.remove(0)
    };
    let say = async |from: &BusPeers, wait| say_this(from, &presence, wait).await;
    assert!(say(&old, PATIENCE).await.is_ok());
    let mut more = presence.clone();
    let instance = serde_json::json!({
        "script_type": "shell", "group": "g", "number": 1, "slots": 1, "busy": 0, "isolation": "basic", "version": "0",
    });
    more["instances"] = vec![instance; limits::PRESENCE_INSTANCES_MAX + 1].into();
    assert!(say_this(&old, &more, PATIENCE).await.is_ok(), "the first ones count");
    let mut named = presence.clone();
    named["supervisor"] = "s".repeat(limits::SUPERVISOR_NAME_BYTES_MAX + 1).into();
    let refused = say_this(&old, &named, PATIENCE).await.err();
    assert!(matches!(&refused, Some(CallError::Refused(_))), "{refused:?}");
    let (impostor, _requests) = old_supervisor(stranger.clone());
    let unheard = say(&impostor, Duration::from_millis(300)).await;
    assert_eq!(unheard.err(), Some(CallError::TimedOut));

    // Where the record asks for signatures again, it is not heard plainly any more.
    here.registry.change(|runner| runner.envelope = v1::EnvelopeForm::Signed.into());
    let unheard = async || {
        let answer = say(&old, Duration::from_millis(300)).await;
        (answer.err() == Some(CallError::TimedOut)).then_some(())
    };
    wait_until(unheard, PATIENCE, "it is not heard").await;
}

/// Changes while it is asked who it is: what it tells at once overtakes its answer.
struct ChangingSupervisor(mpsc::UnboundedSender<JsonRpcPeer>);

fn with_instances(count: usize, queued: u64) -> Presence {
    let instance = model::InstanceInfo {
        script_type: model::ScriptType::Shell,
        group: "g".parse().expect("a name"),
        number: 1,
        slots: 1,
        busy: 0,
        isolation: model::Isolation::Basic,
        layers: Vec::new(),
        version: "0".into(),
    };
    Presence {
        supervisor: "changing".into(),
        version: "0".into(),
        instances: vec![instance; count],
        queued,
        draining: false,
    }
}

async fn announce(peer: &JsonRpcPeer, presence: &Presence) {
    let call = JsonRpcCall::new(method::SUPERVISOR_PRESENCE, presence).expect("JSON");
    peer.call_batch(vec![call], PATIENCE).await.remove(0).expect("heard");
}

impl JsonRpcHandler for ChangingSupervisor {
    fn handle(
        &self,
        peer: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let (peer, asking) = (peer.clone(), self.0.clone());
        Box::pin(async move {
            announce(&peer, &with_instances(1, 0)).await;
            asking.send(peer).ok();
            requests.iter().map(|_| answer(&with_instances(0, 0))).collect()
        })
    }
}

#[tokio::test]
async fn a_change_that_overtakes_an_answer_is_not_forgotten_for_it() {
    let network = MemoryNetwork::default();
    let [ours, theirs] = [(); 2].map(|()| Arc::new(network.node(PublicKey::random())));
    let runner = v1::Runner {
        id: 1,
        address: format!("mycelium:{}", theirs.key()),
        topic: SUPERVISOR_TOPIC.into(),
        envelope: v1::EnvelopeForm::Plain.into(),
        ..Default::default()
    };
    let (asking, mut connections) = mpsc::unbounded_channel();
    let inbox = theirs.listen(SUPERVISOR_TOPIC).expect("free");
    let handler = Arc::new(ChangingSupervisor(asking));
    let side = move |_| PeerEndpoint { handler: handler.clone(), guard: Arc::new(Unguarded) };
    let changing = BusPeers::new(theirs, Arc::new(side));
    tokio::spawn(async move { changing.run(inbox, COORDINATOR_TOPIC).await });
    let here =
        Coordinator::start(CoordinatorOptions { bus: Some(ours), runner, ..CoordinatorOptions::default() })
            .await;
    let coordinator = connections.recv().await.expect("it was asked who it is");
    let connected = async || peer(here.channel(Identity::Admin)).await.connected.then_some(());
    wait_until(connected, PATIENCE, "the supervisor has answered").await;

    announce(&coordinator, &with_instances(1, 7)).await;
    let presence_arrived = async || here.registry.last_presence().filter(|presence| presence.queued == 7);
    wait_until(presence_arrived, PATIENCE, "the registry hears it").await;
    let history = here.registry.history();
    assert!(history.iter().all(|presence| presence.instances.len() == 1), "{history:?}");
}

#[tokio::test]
async fn a_missing_secret_is_in_no_ones_way() {
    let network = MemoryNetwork::default();
    let [ours, theirs] = [(); 2].map(|()| Arc::new(network.node(PublicKey::random())));
    let address = format!("mycelium:{}", theirs.key());
    let (_old, mut requests) = old_supervisor_with(theirs.clone(), Some("right"));
    let secrets = tempfile::tempdir().expect("a directory");
    for name in ["wrong", "right"] {
        let file = secrets.path().join(name);
        std::fs::write(&file, name).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("changed");
    }
    let runner = |secret: &str| v1::Runner {
        id: 1,
        address: address.clone(),
        topic: SUPERVISOR_TOPIC.into(),
        envelope: v1::EnvelopeForm::Plain.into(),
        secret_ref: secret.into(),
        ..Default::default()
    };
    let with = CoordinatorOptions {
        bus: Some(ours),
        secrets_dir: Some(secrets.path().to_owned()),
        runner: runner("wrong"),
        also: vec![(2, runner("right"))],
        ..CoordinatorOptions::default()
    };
    let here = Coordinator::start(with).await;
    let channel = here.channel(Identity::Service(ServiceName::Router));
    let mut router = Router::over(channel, &address).await;
    let (place, job_key) = ((address.clone(), SUPERVISOR_TOPIC.to_owned()), key(1).to_string());
    let mut job = jobs(&address, 1, 1);
    if let Frame::Deliver(deliver) = &mut job {
        deliver.context_id = 2;
    }
    router.says(job).await;
    assert_eq!(router.outcome(1).await, "");
    let orders = [
        Frame::Stop(wire::StopAttempt {
            address: place.0.clone(),
            topic: place.1.clone(),
            job_key: job_key.clone(),
            context_id: 2,
            ..Default::default()
        }),
        Frame::Query(wire::QueryAttempts {
            address: place.0.clone(),
            topic: place.1.clone(),
            context_id: 2,
            flow_id: 7,
            job_keys: vec![job_key.clone()],
        }),
        Frame::ReadLog(wire::ReadAttemptLog {
            read_id: 1,
            address: place.0.clone(),
            topic: place.1.clone(),
            job_key,
            context_id: 2,
            ..Default::default()
        }),
        Frame::Drop(wire::DropContext {
            drop_id: 1,
            address: place.0,
            topic: place.1,
            context_uid: key(1).context.to_string(),
            context_id: 2,
        }),
    ];
    for order in orders {
        router.says(order).await;
    }
    let mut missing = BTreeSet::from([
        method::JOB_RUN,
        method::JOB_STOP,
        method::JOB_STATUS,
        method::JOB_LOGS,
        method::CONTEXT_DROP,
    ]);
    while !missing.is_empty() {
        let next = tokio::time::timeout(PATIENCE, requests.recv()).await;
        let (method, params) = next.expect("everything comes").expect("it listens");
        let expected = if method == method::SUPERVISOR_INFO { "wrong" } else { "right" };
        assert_eq!(params["secret"], expected, "{method}");
        missing.remove(&*method);
    }

    // Who is of the other context says it with its own.
    router.says(jobs(&address, 2, 2)).await;
    let job = async {
        loop {
            match requests.recv().await.expect("it listens") {
                (method, params) if method == method::JOB_RUN => return params["secret"].clone(),
                _ => {}
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, job).await.expect("it comes"), "wrong");
}

#[tokio::test]
async fn a_node_is_one_supervisor_by_whichever_address() {
    let network = MemoryNetwork::default();
    let [ours, theirs] = [(); 2].map(|()| Arc::new(network.node(PublicKey::random())));
    let (by_key, by_ip) = (format!("mycelium:{}", theirs.key()), format!("mycelium:[{}]", theirs.ip()));
    let (_old, mut requests) = old_supervisor(theirs.clone());
    let runner = v1::Runner {
        id: 1,
        address: by_ip.clone(),
        topic: SUPERVISOR_TOPIC.into(),
        envelope: v1::EnvelopeForm::Plain.into(),
        ..Default::default()
    };
    let here =
        Coordinator::start(CoordinatorOptions { bus: Some(ours), runner, ..CoordinatorOptions::default() })
            .await;
    let mut router = Router::over(here.channel(Identity::Service(ServiceName::Router)), &by_ip).await;
    router.says(jobs(&by_ip, 1, 1)).await;
    assert_eq!(router.outcome(1).await, "");
    // No record names it so: it is known who that is.
    let mut by_its_key = Router::over(here.channel(Identity::Service(ServiceName::Router)), &by_key).await;
    by_its_key.says(jobs(&by_key, 2, 2)).await;
    assert_eq!(by_its_key.outcome(2).await, "");
    router.says(jobs(&by_ip, 3, 3)).await;
    assert_eq!(router.outcome(3).await, "");
    let mut client = GatewayServiceClient::new(here.channel(Identity::Admin));
    let gateway = client.get_gateway(v1::GetGatewayRequest {}).await.expect("allowed").into_inner();
    assert!(gateway.peers.len() == 2 && gateway.peers.iter().all(|peer| peer.connected), "{gateway:?}");
    let mut methods = Vec::new();
    while let Ok((method, _)) = requests.try_recv() {
        methods.push(method);
    }
    assert_eq!(methods.iter().filter(|method| *method == method::JOB_RUN).count(), 3);
}

#[tokio::test]
async fn what_is_longer_than_any_letter_is_not_read() {
    let here = Coordinator::start(CoordinatorOptions::default()).await;
    let mut client = GatewayServiceClient::new(here.channel(Identity::Service(ServiceName::Mycora)));
    let mut says = async |length: usize| {
        let payload = vec![b'x'; length].into();
        let envelope = Some(v1::Envelope { payload, ..Default::default() });
        let response = client.deliver(v1::DeliverRequest { envelope }).await;
        response.expect_err("no envelope").code()
    };
    let most = mycelium_gateway::rpc::MAIL_REQUEST_BYTES_MAX;
    assert_eq!(says(most - 64).await, Code::PermissionDenied, "it is read, and signed by nobody");
    assert_eq!(says(most + 1).await, Code::ResourceExhausted);
}

#[tokio::test]
async fn every_reachable_peer_answers_a_ping() {
    let network = MemoryNetwork::default();
    let [ours, node, other] = [(); 3].map(|()| Arc::new(network.node(PublicKey::random())));
    let there =
        Coordinator::start(CoordinatorOptions { bus: Some(other.clone()), ..CoordinatorOptions::default() })
            .await;
    let others = Some(there.authority.ca());
    let here = Coordinator::start(CoordinatorOptions {
        bus: Some(ours.clone()),
        others,
        ..CoordinatorOptions::default()
    })
    .await;
    let ping = async |from: &Coordinator, address: String| {
        let mut client = GatewayServiceClient::new(from.channel(Identity::Admin));
        client.ping_peer(v1::PingPeerRequest { address }).await.map(tonic::Response::into_inner)
    };
    let of = |key: PublicKey| format!("mycelium:{key}");
    let nobody = ping(&here, of(node.key())).await.expect_err("nobody listens");
    assert_eq!(nobody.code(), Code::Unavailable);
    assert!(nobody.message().contains("no node answers on the bus"), "{nobody}");
    let (_peers, _requests) = old_supervisor(node.clone());
    for (address, key) in [
        (of(node.key()), node.key()),
        (format!("mycelium:[{}]", node.ip()), node.key()),
        (of(other.key()), other.key()),
        (of(ours.key()), ours.key()),
    ] {
        let pong = ping(&here, address).await.expect("somebody is there");
        assert_eq!(pong.node, key.to_string());
        assert!(pong.round_trip.is_some());
    }
    for server in [&here, &there] {
        assert_eq!(ping(&here, server.grpc()).await.expect("it is there").node, "");
    }
    let unknown = ping(&there, here.grpc()).await.expect_err("another authority");
    assert_eq!(unknown.code(), Code::Unavailable);
    let closed = format!("grpc://127.0.0.1:{}", testkit::free_port());
    let nobody = ping(&here, closed).await.expect_err("nobody is there");
    assert!(nobody.message().contains("cannot reach"), "{nobody}");
    assert_eq!(ping(&here, "host-a".into()).await.expect_err("no address").code(), Code::InvalidArgument);

    let alone = Coordinator::start(CoordinatorOptions::default()).await;
    let no_bus = ping(&alone, of(node.key())).await.expect_err("no bus");
    assert_eq!(
        (no_bus.code(), ErrorView::from(&no_bus).reason.as_str()),
        (Code::FailedPrecondition, "NO_BUS")
    );
    let gateway =
        GatewayServiceClient::new(here.channel(Identity::Admin)).get_gateway(v1::GetGatewayRequest {}).await;
    let gateway = gateway.expect("allowed").into_inner();
    assert_eq!(gateway.signing_key, here.key.verifying_key().to_string());
    assert_eq!((gateway.coordinator, gateway.bus_version), (here.root_text(), String::new()));
}
