//! Supervisors that know nothing but JSON-RPC, and answer as the ancestor's do.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use identity::{Identity, ServiceName};
use model::execution::Outcome;
use model::supervision::{COORDINATOR_TOPIC, SUPERVISOR_TOPIC, method};
use model::{AttemptEnd, ReasonCode, ReportKind};
use mycelium::json_rpc::{METHOD_NOT_FOUND, answer};
use mycelium::{
    Bus, BusPeers, JsonRpcError, JsonRpcHandler, JsonRpcPeer, JsonRpcRequest, JsonRpcResult, MemoryNetwork,
    PeerEndpoint, PublicKey, Unguarded,
};
use proto::internal::v1 as wire;
use proto::internal::v1::exchange_request::Frame;
use proto::v1;
use serde_json::{Value, json};
use testkit::{PATIENCE, wait_until};
use tokio::sync::{mpsc, watch};

use crate::coordinator::{Coordinator, CoordinatorOptions};
use crate::suite::{Router, execution, key};

/// Runs each job when it is asked to, however often, and answers when it has ended; knows no other method.
struct Ancestor {
    ran: mpsc::UnboundedSender<u32>,
    /// True once slow jobs have ended.
    gate: watch::Receiver<bool>,
}

impl JsonRpcHandler for Ancestor {
    fn handle(
        &self,
        _: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let answers = requests.into_iter().map(|request| {
            let (ran, mut gate) = (self.ran.clone(), self.gate.clone());
            async move {
                if request.method != method::JOB_RUN {
                    return Err(JsonRpcError::of_protocol(METHOD_NOT_FOUND, "there is no such method"));
                }
                let params: Value = serde_json::from_str(request.params.get()).expect("JSON");
                let job =
                    (1..=5).find(|job| params["job_key"] == key(*job).to_string()).expect("one of these");
                ran.send(job).ok();
                match job {
                    1 => answer(&json!({ "success": "42" })),
                    2 => answer(&json!({ "error": "no such file" })),
                    3 => answer(&7),
                    4 => {
                        gate.wait_for(|open| *open).await.expect("it opens");
                        answer(&json!({ "status": "finished", "result": { "late": true } }))
                    }
                    _ => Err(JsonRpcError::refused("QUEUE_FULL", false, "later")),
                }
            }
        });
        Box::pin(join_all(answers))
    }
}

struct Scene {
    here: Coordinator,
    router: Router,
    address: String,
    ran: mpsc::UnboundedReceiver<u32>,
    gate: watch::Sender<bool>,
}

impl Scene {
    async fn new() -> Self {
        let network = MemoryNetwork::default();
        let [ours, theirs] = [(); 2].map(|()| Arc::new(network.node(PublicKey::random())));
        let address = format!("mycelium:{}", theirs.key());
        let ((sender, ran), (gate, gated)) = (mpsc::unbounded_channel(), watch::channel(false));
        let inbox = theirs.listen(SUPERVISOR_TOPIC).expect("free");
        let handler = Arc::new(Ancestor { ran: sender, gate: gated });
        let side = move |_| PeerEndpoint { handler: handler.clone(), guard: Arc::new(Unguarded) };
        let peers = BusPeers::new(theirs, Arc::new(side));
        tokio::spawn(async move { peers.run(inbox, COORDINATOR_TOPIC).await });
        let runner = v1::Runner {
            id: 1,
            address: address.clone(),
            topic: SUPERVISOR_TOPIC.into(),
            envelope: v1::EnvelopeForm::Plain.into(),
            script_types: vec![v1::ScriptType::Python.into()],
            group: "old".into(),
            ..Default::default()
        };
        let here = Coordinator::start(CoordinatorOptions {
            bus: Some(ours),
            runner,
            ..CoordinatorOptions::default()
        })
        .await;
        let router = Router::over(here.channel(Identity::Service(ServiceName::Router)), &address).await;
        Self { here, router, address, ran, gate }
    }

    async fn deliver(&self, delivery_id: u64, jobs: &[u32]) {
        let nodes = jobs.iter().map(|job| serde_json::to_vec(&execution(*job)).expect("JSON").into());
        let deliver = wire::Deliver {
            delivery_id,
            address: self.address.clone(),
            topic: SUPERVISOR_TOPIC.into(),
            context_id: 1,
            context_uid: key(1).context.to_string(),
            nodes: nodes.collect(),
            timeout_millis: 20_000,
        };
        self.router.says(Frame::Deliver(deliver)).await;
    }

    async fn end(&mut self, job: u32) -> AttemptEnd {
        let ended = |kind: &ReportKind| match kind {
            ReportKind::Ended(end) => Some((**end).clone()),
            _ => None,
        };
        self.router.report(key(job), ended).await
    }

    /// Which jobs ran since it was asked last.
    fn ran(&mut self) -> Vec<u32> {
        let mut ran: Vec<u32> = std::iter::from_fn(|| self.ran.try_recv().ok()).collect();
        ran.sort_unstable();
        ran
    }
}

#[tokio::test]
async fn what_the_ancestors_supervisors_answer_ends_a_job() {
    let mut scene = Scene::new().await;
    scene.deliver(1, &[1, 2]).await;
    let good = scene.end(1).await;
    assert_eq!((good.outcome, good.result["output"].as_str()), (Outcome::Succeeded, "42"));
    let bad = scene.end(2).await;
    assert_eq!(bad.reason.map(|reason| reason.to_string()).as_deref(), Some("RUNTIME_ERROR: no such file"));
    assert_eq!(scene.router.outcome(1).await, "");
    assert_eq!(scene.ran(), [1, 2]);
    // Sent again, as after an outcome that was lost: nothing runs twice.
    scene.deliver(2, &[1, 2]).await;
    assert_eq!(scene.router.outcome(2).await, "");
    assert_eq!(scene.ran(), [0; 0]);
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_unknown_and_no_request_follows() {
    let mut scene = Scene::new().await;
    let unknown = |kind: &ReportKind| match kind {
        ReportKind::Rejected { reason, lasting: true, .. } => Some(reason.clone()),
        _ => None,
    };
    scene.deliver(1, &[3]).await;
    let reason = scene.router.report(key(3), unknown).await;
    assert_eq!(reason.code, ReasonCode::Unknown);
    assert!(reason.detail.contains("the supervisor's answer to the job cannot be read"), "{reason}");
    assert_eq!(scene.router.delivered(1).await.refused_count, 1);
    for delivery in 2..=13 {
        scene.deliver(delivery, &[3]).await;
        assert_eq!(scene.router.outcome(delivery).await, "");
    }
    assert_eq!(scene.ran(), [3]);
}

#[tokio::test]
async fn an_answer_may_take_as_long_as_its_job() {
    let mut scene = Scene::new().await;
    scene.deliver(1, &[4]).await;
    let accepted = |kind: &ReportKind| matches!(kind, ReportKind::Accepted { .. }).then_some(());
    scene.router.report(key(4), accepted).await;
    assert_eq!(scene.router.outcome(1).await, "");
    scene.deliver(2, &[4]).await;
    assert_eq!(scene.router.outcome(2).await, "");
    scene.gate.send_replace(true);
    let end = scene.end(4).await;
    assert_eq!((end.outcome, end.result["late"].as_str()), (Outcome::Succeeded, "true"));
    assert_eq!(scene.ran(), [4]);
}

#[tokio::test]
async fn a_supervisor_that_announces_nothing_is_live_with_its_recorded_instances() {
    let scene = Scene::new().await;
    let offered = async || {
        let presence = scene.here.registry.last_presence()?;
        let instance = presence.instances.first()?;
        Some((instance.script_type, instance.group.to_string(), presence.instances.len()))
    };
    let offered = wait_until(offered, PATIENCE, "the registry hears of it").await;
    assert_eq!(offered, (model::ScriptType::Python, "old".to_owned(), 1));
}

#[tokio::test]
async fn a_refusal_by_name_is_one() {
    let mut scene = Scene::new().await;
    scene.deliver(1, &[5]).await;
    let refused = |kind: &ReportKind| match kind {
        ReportKind::Rejected { reason, lasting: false, .. } => Some(reason.to_string()),
        _ => None,
    };
    assert_eq!(scene.router.report(key(5), refused).await, "REFUSED: later");
    assert_eq!(scene.router.outcome(1).await, "");
}
