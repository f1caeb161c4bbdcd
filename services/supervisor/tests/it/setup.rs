//! A machine: a supervisor on a Redis of its own, coordinators on a bus, instances that do as they are told.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use envelope::{Conversation, EnvelopeSigner, OnRefusal, Refusal, Sealer};
use futures_util::future::BoxFuture;
use identity::{Identity, SigningKey};
use kv::Kv;
use model::execution::{AttemptEnd, Outcome};
use model::supervision::{
    EmptyResult, InfoRequest, JobEvent, JobEventKind, JobQuery, SUPERVISOR_TOPIC, method,
};
use model::{Execution, Isolation, JobKey, Presence, ScriptType, Timestamp};
use mycelium::json_rpc::answer;
use mycelium::{
    Bus, BusDestination, BusPeers, CallError, JsonRpcHandler, JsonRpcPeer, JsonRpcRequest, JsonRpcResult,
    MemoryNetwork, PeerEndpoint, PublicKey,
};
use proto::v1::supervisor_service_client::SupervisorServiceClient;
use queue::{
    ClaimedJob, InstanceCommandReader, InstanceDescriptor, InstanceRef, InstanceSession, JobConsumer,
    JobEndReport,
};
use rpc::{Channel, LocalServer, MethodPolicy, Mount};
use serde::Serialize;
use serde::de::DeserializeOwned;
use testkit::{PATIENCE, RedisServer, wait_until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The machine, and what runs on it.
pub(crate) struct Machine {
    pub(crate) redis: RedisServer,
    pub(crate) kv: Kv,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) queue: queue::SupervisorQueues,
    pub(crate) config: supervisor::Config,
    pub(crate) network: MemoryNetwork,
    /// The supervisor's node.
    pub(crate) key: PublicKey,
    /// Metrics of the supervisor since its last start.
    pub(crate) metrics: prometheus::Registry,
    running: Option<Running>,
}

struct Running {
    server: LocalServer,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.shutdown.cancel();
        }
    }
}

impl Machine {
    /// With a supervisor whose configuration is changed so.
    pub(crate) async fn start(change: impl FnOnce(&Path, &mut supervisor::Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = supervisor::Config::new(dir.path().join("work"));
        change(dir.path(), &mut config);
        let redis = RedisServer::start();
        let kv = Kv::new(redis.url().parse().expect("the url of a test server"));
        let queue = queue::SupervisorQueues::new(kv.clone(), kv.endpoint().database());
        let (network, key) = (MemoryNetwork::default(), PublicKey::random());
        let mut machine = Self {
            redis,
            kv,
            dir,
            queue,
            config,
            network,
            key,
            metrics: prometheus::Registry::new(),
            running: None,
        };
        machine.start_supervisor().await;
        machine
    }

    pub(crate) async fn start_supervisor(&mut self) {
        let bus: Arc<dyn Bus> = Arc::new(self.network.node(self.key));
        self.metrics = prometheus::Registry::new();
        let deps = supervisor::Deps { kv: self.kv.clone(), bus: Some(bus), metrics: &self.metrics };
        let app = self.config.clone().build(deps).expect("built");
        let policy = MethodPolicy::new(&[supervisor::rpc::PUBLIC_POLICY]).expect("well-formed");
        let server = LocalServer::new("supervisor");
        server.publish(&app.mount_public(Mount::builder(policy)).build().expect("covered"));
        let (mut ready, shutdown) = (app.readiness().subscribe(), CancellationToken::new());
        let task = tokio::spawn(app.run(shutdown.clone()));
        ready.wait_for(|ready| *ready).await.expect("it runs");
        self.running = Some(Running { server, shutdown, task });
    }

    pub(crate) async fn stop_supervisor(&mut self) {
        let Running { server, shutdown, task } = self.running.take().expect("it runs");
        server.withdraw();
        shutdown.cancel();
        task.await.expect("it ends");
    }

    pub(crate) fn work_dir(&self) -> PathBuf {
        self.config.work_dir.clone()
    }

    pub(crate) fn client(&self, who: Identity) -> SupervisorServiceClient<Channel> {
        let server = &self.running.as_ref().expect("it runs").server;
        SupervisorServiceClient::new(Channel::local(server.handle(), who))
    }

    /// A coordinator on the bus that has introduced itself.
    pub(crate) async fn coordinator(&self) -> Coordinator {
        let coordinator = self.coordinator_of(SigningKey::generate()).await;
        coordinator.presence().await;
        coordinator
    }

    /// Starts a coordinator with this root, which was not heard of before.
    pub(crate) async fn coordinator_of(&self, root: SigningKey) -> Coordinator {
        let key = PublicKey::random();
        let events_received = JobEventRecorder::default();
        let accepting = events_received.clone();
        let sealer = Sealer::of_root(root.clone());
        let name = sealer.root().to_string();
        let signer = EnvelopeSigner::new(sealer, vec![name.clone(), key.to_string()]);
        let speaking = Arc::clone(&signer);
        let accept: mycelium::PeerAcceptor = Arc::new(move |node| PeerEndpoint {
            handler: Arc::new(accepting.clone()),
            guard: signed(&signer, node),
        });
        let peers = BusPeers::new(Arc::new(self.network.node(key)), accept);
        let inbox = peers.bus().listen(model::supervision::COORDINATOR_TOPIC).expect("free");
        let listening = peers.clone();
        tokio::spawn(async move { listening.run(inbox, SUPERVISOR_TOPIC).await });
        let peer = peers.peer(BusDestination::Key(self.key), SUPERVISOR_TOPIC).await.expect("known");
        Coordinator { name, root, signer: speaking, peer, events_received, _peers: peers }
    }

    /// An instance of this group that gives this isolation.
    pub(crate) async fn instance(&self, number: u32, isolation: Isolation) -> Worker {
        self.join(ScriptType::Shell, number, InstanceDescriptor { isolation, ..about() }).await
    }

    pub(crate) async fn join(
        &self,
        script_type: ScriptType,
        number: u32,
        about: InstanceDescriptor,
    ) -> Worker {
        let who = InstanceRef { script_type, group: "default".parse().expect("a name"), number };
        let database = self.kv.endpoint().database();
        let (instance, intake, control) =
            queue::join(&self.kv, database, who, about, |_| true).await.expect("a free place");
        Worker { instance, intake, control }
    }
}

/// Starts a conversation in which a coordinator's messages go signed to the supervisor of a node.
pub(crate) fn signed(signer: &Arc<EnvelopeSigner>, node: PublicKey) -> Arc<Conversation> {
    let (speaking, root) = (Arc::clone(signer), signer.root());
    let heeded: OnRefusal = Arc::new(move |refusal| {
        // Only a coordinator that has another root by now does not hear what was said to the one before.
        let is_to_former = matches!(refusal, Refusal::WrongDestination { .. }) && speaking.root() != root;
        assert!(is_to_former, "a supervisor is not heard: {refusal}");
    });
    Arc::new(Conversation::new(Arc::clone(signer), heeded).with_name(node.to_string()))
}

pub(crate) fn about() -> InstanceDescriptor {
    InstanceDescriptor {
        hostname: "elsewhere".into(),
        pid: 1,
        process_start: 1,
        slots: 1,
        isolation: Isolation::Basic,
        layers: vec!["session".into()],
        version: "0.1.0".into(),
    }
}

/// Job events that a coordinator was told, in order.
#[derive(Clone, Default)]
struct JobEventRecorder(Arc<Mutex<Vec<JobEvent>>>);

impl JsonRpcHandler for JobEventRecorder {
    fn handle(
        &self,
        _: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let events = requests.iter().filter(|request| request.method == method::JOB_EVENT);
        let events = events.map(|request| request.read::<JobEvent>().expect("an event"));
        self.0.lock().expect("not poisoned").extend(events);
        Box::pin(async move { requests.iter().map(|_| answer(&EmptyResult {})).collect() })
    }
}

/// Speaks to the supervisor.
pub(crate) struct Coordinator {
    pub(crate) name: String,
    pub(crate) root: SigningKey,
    pub(crate) signer: Arc<EnvelopeSigner>,
    pub(crate) peer: JsonRpcPeer,
    events_received: JobEventRecorder,
    _peers: BusPeers,
}

impl Coordinator {
    /// Calls; an error is the reason of a refusal, and whether it is lasting.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &impl Serialize,
    ) -> Result<T, (String, bool)> {
        match self.peer.call(method, params, PATIENCE).await {
            Ok(answer) => Ok(serde_json::from_str(answer.get()).expect("the answer that was promised")),
            Err(CallError::Refused(refused)) => Err((refused.reason().to_owned(), refused.is_lasting())),
            Err(error) => panic!("{method}: {error}"),
        }
    }

    pub(crate) async fn run(&self, job: &Execution) -> Result<(), (String, bool)> {
        let accepted: model::supervision::JobAccepted = self.call(method::JOB_RUN, job).await?;
        assert!(accepted.accepted);
        Ok(())
    }

    pub(crate) async fn presence(&self) -> Presence {
        self.call(method::SUPERVISOR_INFO, &InfoRequest {}).await.expect("known")
    }

    /// Waits until the supervisor sees as many instances.
    pub(crate) async fn sees(&self, instances: usize) {
        let seen = || async { (self.presence().await.instances.len() == instances).then_some(()) };
        wait_until(seen, PATIENCE, format!("{instances} instances")).await;
    }

    /// Waits until a job's event that fits was told.
    pub(crate) async fn receives<T>(&self, job: JobKey, fits: impl Fn(&JobEventKind) -> Option<T>) -> T {
        let heard = || async {
            let events_received = self.events_received.0.lock().expect("not poisoned");
            events_received.iter().filter(|event| event.job_key == job).find_map(|event| fits(&event.event))
        };
        wait_until(heard, PATIENCE, format!("word of {job}")).await
    }

    pub(crate) async fn receives_end(&self, job: JobKey) -> AttemptEnd {
        let end = |kind: &JobEventKind| match kind {
            JobEventKind::Ended(end) => Some((**end).clone()),
            _ => None,
        };
        self.receives(job, end).await
    }

    pub(crate) async fn state(&self, job: JobKey) -> String {
        let status: model::supervision::JobStatus =
            self.call(method::JOB_STATUS, &JobQuery { job_key: job }).await.expect("its own");
        status.state
    }
}

/// An instance that does as it is told.
pub(crate) struct Worker {
    pub(crate) instance: InstanceSession,
    pub(crate) intake: JobConsumer,
    pub(crate) control: InstanceCommandReader,
}

impl Worker {
    pub(crate) async fn take(&mut self) -> ClaimedJob {
        loop {
            let mut taken = self.intake.next(1, pending()).await.expect("an answer");
            if let Some(taken) = taken.pop() {
                return taken;
            }
        }
    }

    pub(crate) async fn finish(&self, job_key: JobKey, change: impl FnOnce(&mut AttemptEnd)) {
        let mut end = AttemptEnd {
            outcome: Outcome::Succeeded,
            exit_code: Some(0),
            reason: None,
            result: BTreeMap::new(),
            outputs: BTreeMap::new(),
            output_bytes: 0,
            ended: Vec::new(),
            instance: Some(self.instance.who().to_string()),
            start_time: Some(Timestamp::now()),
            end_time: Timestamp::now(),
        };
        change(&mut end);
        let ending = JobEndReport { job_key, end, last_log: None, output_tail: String::new() };
        self.instance.finish(&ending).await.expect("recorded");
    }
}
