//! A coordinator that is away holds up nobody else.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use envelope::{EnvelopeSigner, Sealer};
use futures_util::future::BoxFuture;
use identity::SigningKey;
use kv::Kv;
use model::id::Uid;
use model::supervision::{EmptyResult, InfoRequest, JobEvent, SUPERVISOR_TOPIC, method};
use model::{
    ActorId, Attempt, ContextId, ContextUid, Execution, FlowId, FlowUid, JobId, JobKey, ScriptSource,
    ScriptType,
};
use mycelium::json_rpc::answer;
use mycelium::{
    Bus, BusDestination, BusPeers, JsonRpcHandler, JsonRpcPeer, JsonRpcRequest, JsonRpcResult, MemoryNetwork,
    PeerEndpoint, PublicKey,
};
use queue::JobOffer;
use testkit::{PATIENCE, RedisServer, wait_until};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::setup::signed;

/// More than a supervisor keeps in memory for one coordinator, with what is under way to it.
const BACKLOG: u32 = 18_000;

pub(crate) fn execution(context: u128, job: u32) -> Execution {
    Execution {
        context_id: ContextId(1),
        flow_id: FlowId(7),
        caller_id: ActorId(1),
        ..Execution::of_script(
            JobKey {
                context: ContextUid(Uid::from_bits(context)),
                flow: FlowUid(Uid::from_bits(2)),
                job: JobId(job),
                attempt: Attempt(1),
            },
            "flow".parse().expect("a name"),
            "node".parse().expect("a name"),
            ScriptType::Shell,
            ScriptSource::Inline(String::new()),
        )
    }
}

/// Makes as many events for a coordinator: jobs that are handed back at once.
async fn backlog(queue: &queue::SupervisorQueues, coordinator: &str, context: u128) {
    for part in (0..BACKLOG).collect::<Vec<_>>().chunks(1000) {
        let offers = part.iter().map(|job| {
            let execution = execution(context, *job);
            let coordinator = coordinator.to_owned();
            let (grants, condition) = (model::Grants::default(), queue::AcceptCondition::None);
            JobOffer { execution, coordinator, grants, condition, weight: NonZeroU32::MIN }
        });
        let accepted = queue.accept_all(offers.collect()).await;
        assert!(accepted.iter().all(Result::is_ok));
    }
    assert_eq!(queue.return_waiting().await, Ok(BACKLOG.into()));
}

/// Notes what it is told, and answers while the gate is open.
#[derive(Clone)]
struct Coordinator {
    reported: Arc<Mutex<HashSet<JobKey>>>,
    gate: watch::Receiver<bool>,
}

impl JsonRpcHandler for Coordinator {
    fn handle(
        &self,
        _: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let Self { reported, mut gate } = self.clone();
        Box::pin(async move {
            gate.wait_for(|open| *open).await.expect("kept by the test");
            let events = requests.iter().filter(|request| request.method == method::JOB_EVENT);
            reported
                .lock()
                .expect("not poisoned")
                .extend(events.map(|request| request.read::<JobEvent>().expect("an event").job_key));
            requests.iter().map(|_| answer(&EmptyResult {})).collect()
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_is_away_does_not_hold_up_others() {
    let redis = RedisServer::start();
    let kv = Kv::new(redis.url().parse().expect("the url of a test server"));
    let database = kv.endpoint().database();
    let work_dir = tempfile::tempdir().expect("a directory");
    let network = MemoryNetwork::default();
    let (supervisor_key, coordinator_key) = (PublicKey::random(), PublicKey::random());
    let queue = queue::SupervisorQueues::new(kv.clone(), database);
    backlog(&queue, &Uid::random().to_string(), 1).await;
    let sealer = Sealer::of_root(SigningKey::generate());
    let root = sealer.root().to_string();
    backlog(&queue, &root, 2).await;

    let bus: Arc<dyn Bus> = Arc::new(network.node(supervisor_key));
    let metrics = prometheus::Registry::new();
    let deps = supervisor::Deps { kv, bus: Some(bus), metrics: &metrics };
    let app = supervisor::Config::new(work_dir.path().to_owned()).build(deps).expect("built");
    let shutdown = CancellationToken::new();
    tokio::spawn(app.run(shutdown.clone()));

    let (open, gate) = watch::channel(false);
    let coordinator = Coordinator { reported: Arc::default(), gate };
    let accepting = coordinator.clone();
    let signer = EnvelopeSigner::new(sealer, vec![root]);
    let accept: mycelium::PeerAcceptor = Arc::new(move |node| PeerEndpoint {
        handler: Arc::new(accepting.clone()),
        guard: signed(&signer, node),
    });
    let peers = BusPeers::new(Arc::new(network.node(coordinator_key)), accept);
    let inbox = peers.bus().listen(model::supervision::COORDINATOR_TOPIC).expect("free");
    let listening = peers.clone();
    tokio::spawn(async move { listening.run(inbox, SUPERVISOR_TOPIC).await });
    let to_supervisor =
        peers.peer(BusDestination::Key(supervisor_key), SUPERVISOR_TOPIC).await.expect("known");
    to_supervisor.call(method::SUPERVISOR_INFO, &InfoRequest {}, PATIENCE).await.expect("introduced");

    // Everything was read once; what there was no room for was left.
    let read = || async {
        let pending = redis.raw(database, &["XPENDING", "hero:done", "supervisor"]);
        pending.contains(&format!(":{}\r\n", 2 * BACKLOG)).then_some(())
    };
    wait_until(read, PATIENCE, "all events were read").await;
    open.send_replace(true);
    let all = || async {
        let reported = coordinator.reported.lock().expect("not poisoned").len();
        (reported == BACKLOG as usize).then_some(())
    };
    wait_until(all, PATIENCE, "all events were told").await;
    let left =
        || async { (redis.raw(database, &["XLEN", "hero:done"]) == format!(":{BACKLOG}\r\n")).then_some(()) };
    wait_until(left, PATIENCE, "only those of the one who is away are left").await;
    shutdown.cancel();
}
