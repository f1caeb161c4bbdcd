//! Tests of the driver by single events: only the tests answer it.

use flow::engine::Engine;
use identity::{Identity, ServiceName};
use model::execution::Outcome;
use model::{
    ActorId, AttemptEnd, ContextUid, Epoch, Flow, FlowSpec, JobId, JobKey, JobSpec, Name, NodeSpec,
    NodeState, OwnerId, RunnerId, ScriptType,
};

use super::*;
use crate::changes::creation::stored_nodes;
use crate::clients;
use crate::destinations::tests::view;
use crate::loaded_flow::FlowPhase;

const CONTEXT: ContextId = ContextId(1);
const CALLER: ActorId = ActorId(7);
const FLOW: FlowId = FlowId(40);
/// The number that storage adds to the ids of jobs.
const BY: u32 = 100;
const ROUTER: ReportStreamId = ReportStreamId(3);

struct Stage {
    driver: Driver,
    registry: prometheus::Registry,
    /// Events from the driver's tasks, which nothing handles.
    _events: mpsc::Receiver<SchedulerEvent>,
}

impl Stage {
    /// A driver alone with a lease, that has ids of messages.
    fn new() -> Self {
        let nowhere = rpc::LocalServer::new("storage").handle();
        let identity = Identity::Service(ServiceName::Scheduler);
        let store = clients::flow_store(rpc::Channel::local(nowhere, identity));
        let (answered, _) = mpsc::channel(1);
        let (commits, _) = commit_link::start(store.clone(), answered, Arc::default());
        let (events, received) = mpsc::channel(EVENTS_MAX);
        let (replicas_sender, replicas) = watch::channel(Vec::new());
        let handle = Handle { events, replicas, log_reads: LogReadClient::default() };
        let registry = prometheus::Registry::new();
        let metrics = Arc::new(Metrics::new(&registry).expect("its own registry"));
        let config = Config::new("here", "");
        let driver =
            Driver::new(&config, store, handle, commits, replicas_sender, metrics, &Readiness::new());
        let mut stage = Self { driver, registry, _events: received };
        stage.lease();
        stage
    }

    fn take(&mut self, event: SchedulerEvent) {
        self.driver.take(event);
        self.driver.go_on();
    }

    fn lease(&mut self) {
        self.take(SchedulerEvent::Replicas(vec!["here".to_owned()]));
        let epoch = self.driver.ids.epoch();
        self.take(SchedulerEvent::MessageIds((CONTEXT, CALLER), epoch, Some(1)));
    }

    /// A supervisor that runs shell jobs is there.
    fn add_runner(&mut self) {
        self.take(SchedulerEvent::Runners {
            views: vec![(CONTEXT, view(5, true, &[ScriptType::Shell]))],
            gone: Vec::new(),
        });
    }

    /// Makes the driver prepare the first step of a flow of one job.
    fn begin(&mut self) -> (Box<ProvisionalFlow>, AssignedFlowIds) {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let node = NodeSpec::new(name("only"), JobSpec::inline(ScriptType::Shell, "true".to_owned()));
        let spec = FlowSpec { nodes: vec![node], ..FlowSpec::new(name("flow")) };
        let plan = flow::Plan::of_specs(&spec.env_vars, &spec.nodes).expect("nothing is wrong with it");
        let flow = Flow {
            status: FlowStatus::Started,
            owner: Some(OwnerId::random()),
            epoch: Epoch(1),
            ..Flow::of(&spec, FlowId(0), FlowUid::random(), CONTEXT, CALLER, Timestamp::now())
        };
        let engine = Engine::unstored(flow.clone(), plan, stored_nodes(spec));
        let (answer, mut begun) = oneshot::channel();
        self.take(SchedulerEvent::PrepareFirstStep(Box::new(engine), answer));
        let begun = begun.try_recv().expect("answered at once").expect("its first step was made");
        let flow = Flow { id: FLOW, jobs: vec![JobId(1 + BY)], ..flow };
        let context_uid = ContextUid(model::id::Uid::from_bits(9));
        (begun, AssignedFlowIds { context_uid, flow, last_commit: "first".to_owned(), by: BY })
    }

    fn stored(&mut self, begun: Box<ProvisionalFlow>, stored: AssignedFlowIds) {
        self.take(SchedulerEvent::FirstStepStored(begun, Some(Box::new(stored))));
    }

    /// Number of observations in a histogram, whatever its labels.
    fn observed(&self, name: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).expect("it is registered");
        family.get_metric().iter().map(|metric| metric.get_histogram().get_sample_count()).sum()
    }

    /// Active nodes by state, as the metrics show them.
    fn active_nodes(&self) -> Vec<(String, f64)> {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == "mycora_scheduler_nodes");
        let metrics = family.expect("it is registered").get_metric().iter();
        let shown = metrics.map(|metric| (metric.get_label()[0].value(), metric.get_gauge().get_value()));
        shown.filter(|(_, count)| *count > 0.0).map(|(state, count)| (state.to_owned(), count)).collect()
    }

    /// Where the flow's job stands in memory; nothing while the flow is read, or is not there.
    fn job(&self) -> Option<(JobId, NodeState, Option<RunnerId>)> {
        match &self.driver.flows.get(&(CONTEXT, FLOW))?.phase {
            FlowPhase::Idle(engine) | FlowPhase::Reading(engine, _) | FlowPhase::Committing(engine, _) => {
                let node = &engine.nodes()[0];
                Some((node.job_id, node.state, node.runner))
            }
            FlowPhase::Loading => None,
        }
    }
}

fn reported(stored: &AssignedFlowIds, kind: ReportKind) -> NodeReport {
    let job_key = JobKey {
        context: stored.context_uid,
        flow: stored.flow.uid,
        job: stored.flow.jobs[0],
        attempt: model::Attempt(1),
    };
    NodeReport { job_key, context_id: CONTEXT, flow_id: FLOW, source: None, kind }
}

fn ended(stored: &AssignedFlowIds) -> NodeReport {
    let end = AttemptEnd::unstarted(Outcome::Succeeded, None, Timestamp::now());
    reported(stored, ReportKind::Ended(Box::new(end)))
}

#[tokio::test]
async fn a_flow_is_driven_from_its_first_step_on() {
    let mut stage = Stage::new();
    stage.add_runner();
    let (mut begun, stored) = stage.begin();
    assert_eq!(begun.take_step().messages.len(), 1);
    stage.stored(begun, stored);
    assert_eq!(stage.job(), Some((JobId(1 + BY), NodeState::Dispatched, Some(RunnerId(5)))));
    assert!(stage.driver.committing.is_empty(), "all of it is stored");
}

#[tokio::test]
async fn a_place_that_comes_between_is_taken() {
    let mut stage = Stage::new();
    let (mut begun, stored) = stage.begin();
    assert!(begun.take_step().messages.is_empty(), "there is no place");
    stage.add_runner();
    stage.stored(begun, stored);
    assert_eq!(stage.job(), Some((JobId(1 + BY), NodeState::Dispatched, Some(RunnerId(5)))));
    assert_eq!(stage.driver.committing.len(), 1, "by a step of its own");
}

#[tokio::test]
async fn a_report_received_before_a_flow_is_stored_is_applied_afterwards() {
    let mut stage = Stage::new();
    stage.add_runner();
    let (begun, stored) = stage.begin();
    let report = ended(&stored);
    stage.take(SchedulerEvent::Reports(vec![((ROUTER, 1), report)]));
    assert!(stage.driver.flows.is_empty(), "it is not taken for a flow that has to be read");
    stage.stored(begun, stored);
    assert_eq!(stage.job().map(|(_, state, _)| state), Some(NodeState::Completed));
    assert_eq!(stage.driver.committing.len(), 1);
}

#[tokio::test]
async fn a_step_of_a_frozen_context_is_made_again_later_and_leaves_room_for_others() {
    let mut stage = Stage::new();
    stage.add_runner();
    let (begun, stored) = stage.begin();
    let report = ended(&stored);
    stage.stored(begun, stored);
    stage.take(SchedulerEvent::Reports(vec![((ROUTER, 1), report)]));
    let commit_id = stage.driver.committing.keys().next().expect("a step is being stored").clone();
    let refusal = proto::internal::v1::CommitRefusal::Frozen.into();
    stage.driver.committed(&CommitResponse { commit_id, refusal, ..Default::default() });
    stage.driver.go_on();
    assert!(stage.driver.committing.is_empty(), "others can be stored");
    let key = (CONTEXT, FLOW);
    let run = &stage.driver.flows[&key];
    let later = run.awaited.expect("a later time");
    assert!(run.reload && !run.queued && later > Timestamp::now(), "{later}");
    assert!(stage.driver.due.contains(&(later, key)));
    // Then the flow is read, and the report is taken up once more.
    stage.driver.enqueue(key);
    stage.driver.go_on();
    assert_eq!(stage.job(), None, "it is being read");
    assert!(!stage.driver.flows[&key].is_quiet());
}

#[tokio::test]
async fn a_flow_is_read_whose_lease_was_lost_between() {
    for is_held_again in [false, true] {
        let mut stage = Stage::new();
        stage.add_runner();
        let (begun, stored) = stage.begin();
        stage.take(SchedulerEvent::Invalidate);
        if is_held_again {
            stage.lease();
        }
        stage.stored(begun, stored);
        assert_eq!(stage.job(), None, "others may have had it");
        assert_eq!(stage.driver.flows.contains_key(&(CONTEXT, FLOW)), is_held_again);
        assert!(stage.driver.committing.is_empty());
    }
}

#[tokio::test]
async fn a_flow_whose_fate_is_unknown_leaves_nothing_behind() {
    let mut stage = Stage::new();
    stage.add_runner();
    let (begun, stored) = stage.begin();
    stage.take(SchedulerEvent::FirstStepStored(begun, None));
    assert!(stage.driver.early.is_empty() && stage.driver.flows.is_empty());
    // A later report makes the driver read the flow.
    stage.take(SchedulerEvent::Reports(vec![((ROUTER, 1), ended(&stored))]));
    assert!(stage.driver.flows.contains_key(&(CONTEXT, FLOW)));
    // And nothing counts as under way at its place.
    assert!(stage.driver.load.is_empty());
}

#[tokio::test]
async fn a_flow_is_measured_from_its_creation_to_its_last_commit() {
    let mut stage = Stage::new();
    stage.add_runner();
    let (begun, stored) = stage.begin();
    let start = Timestamp::now();
    let started = ReportKind::Started { instance: "shell:default:1".to_owned(), time: start };
    let end = AttemptEnd {
        start_time: Some(start),
        ..AttemptEnd::unstarted(Outcome::Succeeded, None, Timestamp::now())
    };
    let reports = [reported(&stored, started), reported(&stored, ReportKind::Ended(Box::new(end)))];
    stage.stored(begun, stored);
    assert_eq!(stage.active_nodes(), [("dispatched".to_owned(), 1.0)]);
    assert_eq!(stage.observed("mycora_scheduler_queue_wait_seconds"), 0);

    // Both are taken up by one step, whose commit then ends the flow.
    let reports = (1..).zip(reports).map(|(number, report)| ((ROUTER, number), report)).collect();
    stage.take(SchedulerEvent::Reports(reports));
    let of_attempt = ["queue_wait", "run", "submit_to_start"]
        .map(|name| stage.observed(&format!("mycora_scheduler_{name}_seconds")));
    assert_eq!((of_attempt, stage.active_nodes()), ([1, 1, 1], vec![]));
    assert_eq!(stage.observed("mycora_scheduler_commit_seconds"), 0, "it is under way");
    let commit_id = stage.driver.committing.keys().next().expect("a commit under way").clone();
    stage.driver.committed(&CommitResponse { commit_id, ..Default::default() });
    assert_eq!(stage.observed("mycora_scheduler_commit_seconds"), 1);
    assert!(stage.driver.flows.is_empty(), "it has ended");
}

#[tokio::test]
async fn nodes_of_a_flow_that_leaves_memory_are_not_active_here() {
    let mut stage = Stage::new();
    let (begun, stored) = stage.begin();
    stage.stored(begun, stored);
    assert_eq!(stage.active_nodes(), [("ready".to_owned(), 1.0)], "there is no runner");
    stage.take(SchedulerEvent::Invalidate);
    assert_eq!(stage.active_nodes(), []);
}
