//! Clients that never give up, and write down what they were answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::NodeState;
use mycora_cli::profile::{ApiService, Profile};
use proto::convert::enums::node_state_from_wire;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::watch_flow_response::Event;
use proto::v1::{
    FlowStatus, ListFlowNodesRequest, ListFlowsRequest, SubmitFlowRequest, WatchFlowRequest,
    WatchFlowResponse,
};
use rpc::{Channel, ErrorView};
use testkit::Witness;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::draw::Draw;
use crate::history::{
    Answer, Change, FinalFlow, FinalNode, History, PlannedFlow, StrangerCall, Submission, Watch,
};
use crate::load;

/// After so long an answer is taken for lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// After this long a silent watch is reopened: heartbeats come every 15 s.
const RESPONSE_WITHIN: Duration = Duration::from_secs(20);
/// Before the next try of what failed.
const TRY_AGAIN: Duration = Duration::from_millis(50);
const CONTEXT: u32 = 1;
/// Name of the stranger's flow.
const STRANGE: &str = "strange";
const PAGE: u32 = 1000;

type Flows = FlowServiceClient<Channel>;

/// State that all clients of a run share.
#[derive(Debug, Clone)]
pub struct Clients {
    seed: u64,
    doors: Vec<Flows>,
    strange_doors: Vec<Flows>,
    witness: Witness,
    history: Arc<Mutex<History>>,
    /// All clients end at once, whatever is still open.
    over: CancellationToken,
}

impl Clients {
    /// Clients that use these profiles. Must be created within a runtime.
    ///
    /// # Panics
    /// When a profile cannot be used.
    #[must_use]
    pub fn new(
        seed: u64,
        profiles: &[Profile],
        strangers: &[Profile],
        witness: Witness,
        slots: usize,
    ) -> Self {
        let door = |profile: &Profile| {
            Flows::new(profile.channel_to(ApiService::Scheduler).expect("a profile of the suite"))
        };
        Self {
            seed,
            doors: profiles.iter().map(door).collect(),
            strange_doors: strangers.iter().map(door).collect(),
            witness,
            history: Arc::new(Mutex::new(History { slots, ..History::default() })),
            over: CancellationToken::new(),
        }
    }

    /// Ends every call and every watch.
    pub fn give_up(&self) {
        self.over.cancel();
    }

    /// Returns the history that the clients have recorded so far.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn door(&self, number: u64) -> Flows {
        self.doors[usize::try_from(number).unwrap_or_default() % self.doors.len()].clone()
    }

    /// Submits a flow, and watches it to its end. Whether it came to that.
    pub async fn see_through(&self, number: u64, name: String, flow: PlannedFlow) -> bool {
        match self.hand_in(number, name, flow).await {
            Some(id) => self.watch(number, id).await,
            None => false,
        }
    }

    /// Submits a flow, again and again until it is known to be taken: its number then. Nothing when it was refused.
    pub async fn hand_in(&self, number: u64, name: String, flow: PlannedFlow) -> Option<u32> {
        let spec = load::spec(&name, &flow, &self.witness);
        self.history().planned.insert(name.clone(), flow);
        let request = SubmitFlowRequest {
            request_id: name.clone(),
            context_id: CONTEXT,
            flow: Some(spec),
            ..Default::default()
        };
        self.over.run_until_cancelled(self.submit(number, &name, &request)).await.flatten()
    }

    /// Watches a flow to its end, once all the time and once with streams that are dropped. Whether it came to its end.
    pub async fn watch(&self, number: u64, id: u32) -> bool {
        let faithful = Watcher::new(self, id, "a faithful watcher", None, number);
        let mut draw = Draw::new(self.seed, 3 + (number << 8));
        let drops = draw.between(1, 8);
        let restless = Watcher::new(self, id, "a restless watcher", Some(drops), number + 1);
        let (one, other) = tokio::join!(faithful.watch(), restless.watch());
        one && other
    }

    /// Nothing when it was refused.
    async fn submit(&self, number: u64, name: &str, request: &SubmitFlowRequest) -> Option<u32> {
        let mut door = number;
        loop {
            let mut flows = self.door(door);
            let answer = match within(ANSWER_WITHIN, flows.submit_flow(request.clone())).await {
                Ok(taken) => Answer::Taken(taken.into_inner().flow.unwrap_or_default().id),
                Err(status) if is_final(&status) => Answer::Refused(describe(&status)),
                Err(status) => Answer::Unknown(describe(&status)),
            };
            self.history().submissions.push(Submission { flow: name.to_owned(), answer: answer.clone() });
            match answer {
                Answer::Taken(id) => return Some(id),
                Answer::Refused(_) => return None,
                // Another replica may be there.
                Answer::Unknown(_) => door += 1,
            }
            pause(TRY_AGAIN).await;
        }
    }

    /// Calls as an actor without a role, until everything is over.
    pub async fn intrude(&self, until: &CancellationToken) {
        let mut turn = 0_usize;
        while !until.is_cancelled() {
            let mut flows = self.strange_doors[turn % self.strange_doors.len()].clone();
            let list = ListFlowsRequest { context_id: CONTEXT, ..Default::default() };
            let watch = WatchFlowRequest { context_id: CONTEXT, flow_id: 1, ..Default::default() };
            // Only who it comes from is wrong with it.
            let (_, nothing) = load::probe(self.seed, 0);
            let flow = load::spec(STRANGE, &nothing, &self.witness);
            let submit = SubmitFlowRequest { context_id: CONTEXT, flow: Some(flow), ..Default::default() };
            let (method, answer) = match turn % 3 {
                0 => ("ListFlows", within(ANSWER_WITHIN, flows.list_flows(list)).await.map(drop)),
                1 => ("WatchFlow", within(ANSWER_WITHIN, flows.watch_flow(watch)).await.map(drop)),
                _ => ("SubmitFlow", within(ANSWER_WITHIN, flows.submit_flow(submit)).await.map(drop)),
            };
            self.history()
                .strangers
                .push(StrangerCall { method: method.to_owned(), allowed: answer.is_ok() });
            turn += 1;
            let _ = tokio::time::timeout(Duration::from_millis(200), until.cancelled()).await;
        }
    }

    /// Records the state of every flow, and what an uninterrupted watch reports of each that was watched.
    pub async fn look(&self) {
        let flows = self.patiently(async |mut flows| all_flows(&mut flows).await).await;
        self.history().flows = flows.unwrap_or_default();
        let watches = |watch: &Watch| (watch.flow, watch.from.clone());
        let wanted: Vec<(u32, String)> = self.history().watches.iter().map(watches).collect();
        let mut replays = Vec::new();
        for (flow, from) in wanted {
            let replay = self.patiently(async |mut flows| replay(&mut flows, flow, &from).await).await;
            replays.push(replay.unwrap_or_default());
        }
        for (watch, replay) in self.history().watches.iter_mut().zip(replays) {
            watch.replayed = replay;
        }
    }

    /// Repeats what only reads until it works.
    async fn patiently<T>(&self, call: impl AsyncFn(Flows) -> Result<T, Status>) -> Option<T> {
        let read = async {
            for door in 0.. {
                if let Ok(read) = call(self.door(door)).await {
                    return Some(read);
                }
                pause(TRY_AGAIN).await;
            }
            None
        };
        tokio::time::timeout(Duration::from_secs(60), read).await.ok().flatten()
    }
}

/// One watcher of one flow.
struct Watcher<'a> {
    clients: &'a Clients,
    door: u64,
    /// Drops each stream after so many changes.
    drops: Option<u64>,
    at: String,
    watch: Watch,
}

/// End of one stream.
enum Stream {
    Ended,
    Broken(Status),
}

impl<'a> Watcher<'a> {
    fn new(clients: &'a Clients, flow: u32, watcher: &str, drops: Option<u64>, door: u64) -> Self {
        let watch = Watch {
            flow,
            watcher: watcher.to_owned(),
            from: String::new(),
            snapshot: Vec::new(),
            reported: Vec::new(),
            replayed: Vec::new(),
            resumed: 0,
            breaks: Vec::new(),
            status: None,
            refused: None,
        };
        Self { clients, door, drops, at: String::new(), watch }
    }

    /// Watches until the flow has ended; returns whether it has.
    async fn watch(mut self) -> bool {
        let clients = self.clients;
        let _ = clients.over.run_until_cancelled(self.follow()).await;
        let has_ended = self.watch.status.is_some();
        clients.history().watches.push(self.watch);
        has_ended
    }

    async fn follow(&mut self) {
        loop {
            match self.read().await {
                Ok(Stream::Ended) => return,
                Ok(Stream::Broken(status)) | Err(status) => {
                    if is_final(&status) {
                        self.watch.refused = Some(describe(&status));
                        return;
                    }
                    if status.code() != Code::Aborted {
                        self.watch.breaks.push(describe(&status));
                    }
                    self.watch.resumed += 1;
                    self.door += 1;
                    pause(TRY_AGAIN).await;
                }
            }
        }
    }

    /// One stream.
    async fn read(&mut self) -> Result<Stream, Status> {
        let mut flows = self.clients.door(self.door);
        let request = WatchFlowRequest {
            context_id: CONTEXT,
            flow_id: self.watch.flow,
            resume_position: self.at.clone(),
        };
        let mut stream = within(ANSWER_WITHIN, flows.watch_flow(request)).await?.into_inner();
        let mut changes = 0;
        if self.at.is_empty() {
            // What came of the snapshot before was not all of it.
            self.watch.snapshot.clear();
        }
        loop {
            let response = match within(RESPONSE_WITHIN, stream.message()).await {
                Ok(Some(response)) => response,
                Ok(None) => return Ok(Stream::Ended),
                Err(status) => return Ok(Stream::Broken(status)),
            };
            if self.watch.from.is_empty() {
                self.watch.from.clone_from(&response.resume_position);
            }
            if !response.resume_position.is_empty() {
                self.at.clone_from(&response.resume_position);
            }
            match &response.event {
                Some(Event::Node(node)) => {
                    self.watch.snapshot.push((node.job_id, state(node.state), node.attempt));
                }
                // What changed while the snapshot was read belongs to it, and has no position.
                Some(Event::NodeChange(shown)) if response.resume_position.is_empty() => {
                    self.watch.snapshot.push((shown.job_id, state(shown.state), shown.attempt));
                }
                Some(Event::NodeChange(_)) => {
                    self.watch.reported.extend(change(&response));
                    changes += 1;
                }
                // Also in a snapshot: a watcher that comes after the end gets nothing else.
                Some(Event::Flow(flow)) if has_ended(flow.status()) => {
                    self.watch.status = Some(flow.status().as_str_name().to_owned());
                }
                _ => {}
            }
            if self.drops == Some(changes) && self.watch.status.is_none() {
                return Ok(Stream::Broken(Status::aborted("dropped on purpose")));
            }
        }
    }
}

/// Returns the changes that an uninterrupted watch reports from a position on. The end of the flow ends the watch.
async fn replay(flows: &mut Flows, flow_id: u32, from: &str) -> Result<Vec<Change>, Status> {
    let request = WatchFlowRequest { context_id: CONTEXT, flow_id, resume_position: from.to_owned() };
    let mut stream = within(ANSWER_WITHIN, flows.watch_flow(request)).await?.into_inner();
    let mut reported = Vec::new();
    while let Some(response) = within(ANSWER_WITHIN, stream.message()).await? {
        reported.extend(change(&response));
    }
    Ok(reported)
}

async fn all_flows(flows: &mut Flows) -> Result<Vec<FinalFlow>, Status> {
    let mut found = Vec::new();
    let mut request = ListFlowsRequest { context_id: CONTEXT, page_size: PAGE, ..Default::default() };
    loop {
        let page = within(ANSWER_WITHIN, flows.list_flows(request.clone())).await?.into_inner();
        for flow in page.flows {
            let nodes = ListFlowNodesRequest {
                context_id: CONTEXT,
                flow_id: flow.id,
                page_size: PAGE,
                ..Default::default()
            };
            let nodes = within(ANSWER_WITHIN, flows.list_flow_nodes(nodes)).await?.into_inner().nodes;
            let node = |node: proto::v1::FlowNode| FinalNode {
                job_id: node.job_id,
                state: state(node.state),
                attempt: node.attempt,
                reason: node.reason.map(|reason| reason.code).unwrap_or_default(),
                name: node.name,
            };
            found.push(FinalFlow {
                id: flow.id,
                status: flow.status().as_str_name().to_owned(),
                has_ended: has_ended(flow.status()),
                name: flow.name,
                nodes: nodes.into_iter().map(node).collect(),
            });
        }
        if page.next_page_token.is_empty() {
            return Ok(found);
        }
        request.page_token = page.next_page_token;
    }
}

fn change(response: &WatchFlowResponse) -> Option<Change> {
    let Some(Event::NodeChange(change)) = &response.event else { return None };
    Some(Change {
        position: response.resume_position.clone(),
        job_id: change.job_id,
        state: state(change.state),
        attempt: change.attempt,
        reason: change.reason.as_ref().map(|reason| reason.code.clone()).unwrap_or_default(),
    })
}

fn state(number: i32) -> NodeState {
    node_state_from_wire(number).unwrap_or(NodeState::Pending)
}

const fn has_ended(status: FlowStatus) -> bool {
    matches!(status, FlowStatus::Finished | FlowStatus::Error | FlowStatus::Cancelled)
}

/// Returns true if the same call would be answered the same again.
fn is_final(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
    )
}

fn describe(status: &Status) -> String {
    format!("{:?} {}: {}", status.code(), ErrorView::from(status).reason, status.message())
}

async fn within<T>(time: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Err(Status::deadline_exceeded("no answer in time"));
    tokio::time::timeout(time, call).await.unwrap_or_else(late)
}

/// Leaves the machine to others for a moment.
pub(crate) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
