//! Requests of actors for flows, and their outcomes.

use std::collections::BTreeSet;

use model::{BlobHash, FlowInput};
use proto::internal::v1 as wire;
use tonic::Code;

use super::{Answer, Call, Expected, Flows, Operation, Status, What};
use crate::conformance::{Chances, End, Requesting};
use crate::places::Redis;
use crate::stage::{CONTEXT, READER, Running, STRANGER, Stage, create, script};

impl Call {
    fn request_hash(&self) -> String {
        BlobHash::of(format!("{} {:?}", self.flow, self.operation).as_bytes()).to_string()
    }
}

/// Another body under the same request id.
fn changed(mut call: Call) -> Call {
    call.operation = match call.operation {
        Operation::Create { nodes } => Operation::Create { nodes: nodes + 1 },
        // Another kind of request.
        Operation::Add => Operation::Start { owner: None },
        Operation::Start { .. } => Operation::Add,
        Operation::Cancel { grace_secs } => Operation::Cancel { grace_secs: grace_secs + 1 },
        Operation::Signal { name } => Operation::Signal { name: name + 1 },
        Operation::Restart { expected_revision, .. } => Operation::Remove { expected_revision },
        Operation::Remove { .. } => Operation::Cancel { grace_secs: 0 },
    };
    call
}

impl Flows {
    pub(super) fn call(&self, op: &Chances<What>) -> Option<(u32, Call)> {
        let request_id = op.request_id();
        if matches!(op.what, What::Again) {
            return self.past_requests.again(op, changed);
        }
        if matches!(op.what, What::Create) {
            let operation = Operation::Create { nodes: u32::from(op.mask) % 3 + 1 };
            return Some((op.who, Call { request_id, flow: 0, operation }));
        }
        let flow = self.some(op)?;
        let Expected { running, generation, .. } = &self.flows[flow];
        // Any, the last, or another.
        let expected_revision = [0, 0, 0, running.revision, running.revision - 1][usize::from(op.number) % 5];
        let operation = match op.what {
            What::Add => Operation::Add,
            What::Start => {
                Operation::Start { owner: Some(usize::from(op.mask) % 3).filter(|owner| *owner < 2) }
            }
            What::Cancel => Operation::Cancel { grace_secs: u32::from(op.mask) % 3 },
            What::Signal => Operation::Signal { name: op.mask % 4 },
            What::Restart => {
                Operation::Restart { generation: generation - u32::from(op.mask > 230), expected_revision }
            }
            What::Remove => Operation::Remove { expected_revision },
            What::Create | What::Again | What::Take | What::Commit | What::CommitAgain => return None,
        };
        Some((op.who, Call { request_id, flow, operation }))
    }

    /// Expected outcome of a call that was not made before, for a flow that is there.
    fn end_of(&self, call: &Call) -> End {
        let refused = |reason| End::Refused(Code::FailedPrecondition, reason);
        let flow = &self.flows[call.flow];
        let is_stale = |expected: u64| expected != 0 && expected != flow.running.revision;
        const STALE: End = End::Refused(Code::Aborted, "REVISION_MISMATCH");
        match call.operation {
            Operation::Create { .. } | Operation::Cancel { .. } | Operation::Signal { .. } => End::Made,
            Operation::Add if flow.status == Status::Created => End::Made,
            Operation::Start { owner } if flow.is_started_by(owner.map(|owner| &self.owners[owner])) => {
                End::Made
            }
            Operation::Start { .. } if flow.status == Status::Created && !flow.has_nodes => {
                refused("NODES_MISSING")
            }
            Operation::Start { .. } if flow.status == Status::Created => End::Made,
            Operation::Add | Operation::Start { .. } => refused("FLOW_NOT_CREATED"),
            Operation::Restart { expected_revision, .. } if is_stale(expected_revision) => STALE,
            Operation::Restart { .. } if flow.status != Status::Finished => refused("FLOW_NOT_ENDED"),
            Operation::Restart { generation, .. } if generation != flow.generation => STALE,
            Operation::Restart { .. } => End::Made,
            Operation::Remove { expected_revision } if is_stale(expected_revision) => STALE,
            Operation::Remove { .. } if flow.status == Status::Finished || flow.is_given_up() => End::Made,
            Operation::Remove { .. } => refused("FLOW_NOT_ENDED"),
        }
    }

    fn take_created(&mut self, stage_uid: &str, nodes: u32, record: &wire::FlowRecord, first_job: u32) {
        let flow = record.flow.clone().unwrap();
        assert!(self.flows.iter().all(|known| known.running.id != flow.id), "no number is given again");
        self.flows.push(Expected {
            running: Running {
                id: flow.id,
                uid: flow.uid,
                context_uid: stage_uid.to_owned(),
                first_job,
                count: nodes,
                owner: self.owners[0].clone(),
                epoch: 0,
                last_commit: String::new(),
                revision: 0,
            },
            status: Status::Created,
            has_nodes: false,
            requested_grace_secs: None,
            signals: BTreeSet::new(),
            inputs: 0,
            active: false,
            generation: 1,
            is_owned: true,
            last: None,
        });
    }

    /// The flow has changed.
    pub(super) fn raise(&mut self, flow: usize) {
        self.revision += 1;
        self.flows[flow].running.revision = self.revision;
    }

    /// Says whether it changed anything.
    fn take_start(&mut self, flow: usize, owner: Option<usize>, record: &wire::FlowRecord) -> bool {
        let expected = &mut self.flows[flow];
        if expected.status != Status::Created {
            return false;
        }
        (expected.running.epoch, expected.running.last_commit) = (1, record.last_commit.clone());
        match owner {
            Some(owner) => expected.running.owner.clone_from(&self.owners[owner]),
            None => expected.is_left_alone(),
        }
        expected.status = Status::Started;
        expected.active = true;
        true
    }

    fn take_restart(&mut self, flow: usize, record: &wire::FlowRecord) {
        let expected = &mut self.flows[flow];
        expected.generation += 1;
        expected.running.epoch += 1;
        assert_eq!(record.owner, "");
        expected.is_left_alone();
        expected.running.last_commit.clone_from(&record.last_commit);
        expected.status = Status::Started;
        expected.active = true;
        expected.requested_grace_secs = None;
    }

    /// Performs a call that begins a generation of a flow.
    async fn perform_run(
        &self,
        stage: &Stage<impl Redis>,
        who: u32,
        call: Call,
    ) -> Result<Answer, tonic::Status> {
        let (request_id, request_hash) = (call.request_id.clone(), call.request_hash());
        let Expected { running, signals, .. } = &self.flows[call.flow];
        let (flow_id, flow_uid) = (running.id, running.uid.clone());
        if let Operation::Restart { generation, expected_revision } = call.operation {
            let ask = wire::RestartFlowRequest {
                context_id: CONTEXT,
                flow_id,
                flow_uid,
                on_behalf_of: who,
                request_id,
                request_hash,
                rerun_json: r#"{"scope":"failed"}"#.to_owned(),
                generation,
                expected_revision,
                ..Default::default()
            };
            let done = stage.flows().restart_flow(ask).await?.into_inner();
            return Ok(Answer::Restarted(Box::new(done.flow.unwrap()), done.restarted));
        }
        let Operation::Start { owner } = call.operation else { panic!("{call:?} begins nothing") };
        let ask = wire::StartFlowRequest {
            context_id: CONTEXT,
            flow_id,
            flow_uid,
            owner: owner.map(|owner| self.owners[owner].clone()).unwrap_or_default(),
            on_behalf_of: who,
            request_id,
            request_hash,
        };
        let started = stage.flows().start_flow(ask).await?.into_inner();
        let given = started.signals.iter().map(|name| name[1..].parse().unwrap());
        assert_eq!(*signals, given.collect());
        Ok(Answer::Flow(Box::new(started.flow.unwrap()), 0))
    }
}

impl Requesting for Flows {
    type Call = Call;
    type Answer = Answer;

    fn expect(&self, who: u32, call: &Call) -> End {
        let before = self.past_requests.before(who, &call.request_id, call);
        let result = self.results.get(&(who, call.request_id.clone()));
        let is_gone = |flow: usize| self.flows[flow].status == Status::Gone;
        match (&call.operation, before) {
            _ if who == STRANGER => End::UNSEEN,
            (Operation::Create { .. }, _) if who == READER => End::DENIED,
            (Operation::Create { .. }, Some(End::MadeBefore))
                if result.is_some_and(|result| is_gone(result.0)) =>
            {
                End::UNSEEN
            }
            (Operation::Create { .. }, before) => before.unwrap_or(End::Made),
            // The same removal is confirmed again.
            (Operation::Remove { .. }, Some(before)) => before,
            _ if is_gone(call.flow) => End::UNSEEN,
            _ if who == READER => End::DENIED,
            (Operation::Start { .. }, Some(End::MadeBefore)) => match self.end_of(call) {
                End::Made => End::MadeBefore,
                // It is answered by those who look for the request first.
                no => no,
            },
            (_, Some(before)) => before,
            (_, None) => self.end_of(call),
        }
    }

    async fn perform(
        &self,
        stage: &Stage<impl Redis>,
        who: u32,
        call: Call,
    ) -> Result<Answer, tonic::Status> {
        let (mut flows, context_id, on_behalf_of) = (stage.flows(), CONTEXT, who);
        let (request_id, request_hash) = (call.request_id.clone(), call.request_hash());
        let running = match &call.operation {
            Operation::Create { nodes } => {
                let ask =
                    wire::CreateFlowRequest { request_id, request_hash, on_behalf_of, ..create(*nodes) };
                let made = flows.create_flow(ask).await?.into_inner();
                return Ok(Answer::Flow(Box::new(made.flow.unwrap()), made.first_job_id));
            }
            _ => &self.flows[call.flow].running,
        };
        let flow_id = running.id;
        let push = |input: FlowInput| running.push(&input);
        let push = match &call.operation {
            Operation::Add => {
                let add = running.add_nodes(&script("true"));
                let request_ends = true;
                let ask =
                    wire::AddNodesRequest { request_id, request_hash, request_ends, on_behalf_of, ..add };
                return flows.add_nodes(ask).await.map(|_| Answer::Nothing);
            }
            Operation::Remove { expected_revision } => {
                let expected_revision = *expected_revision;
                let ask = wire::RemoveFlowRequest {
                    context_id,
                    flow_id,
                    on_behalf_of,
                    request_id,
                    request_hash,
                    expected_revision,
                };
                return flows.remove_flow(ask).await.map(|_| Answer::Nothing);
            }
            Operation::Create { .. } | Operation::Start { .. } | Operation::Restart { .. } => {
                return self.perform_run(stage, who, call).await;
            }
            Operation::Cancel { grace_secs } => push(FlowInput::Cancel { grace_secs: *grace_secs }),
            Operation::Signal { name } => {
                push(FlowInput::Signal { name: format!("s{name}").parse().unwrap() })
            }
        };
        let ask = wire::PushInputRequest { request_id, request_hash, on_behalf_of, ..push };
        let pushed = flows.push_input(ask).await?.into_inner();
        Ok(Answer::Pushed(Box::new(pushed.flow.unwrap()), pushed.unchanged))
    }

    fn take(&mut self, who: u32, call: &Call, answer: &Answer) {
        let (mut flow, mut is_change) = (call.flow, true);
        let mut unchanged = false;
        match (&call.operation, answer) {
            (Operation::Create { nodes }, Answer::Flow(record, first_job)) => {
                self.take_created(&record.context_uid, *nodes, record, *first_job);
                flow = self.flows.len() - 1;
            }
            (Operation::Add, _) => {
                is_change = !self.flows[flow].has_nodes;
                self.flows[flow].has_nodes = true;
            }
            (Operation::Start { owner }, Answer::Flow(record, _)) => {
                is_change = self.take_start(flow, *owner, record);
            }
            (Operation::Cancel { grace_secs }, _) => {
                let expected = &mut self.flows[flow];
                is_change = expected.is_new_cancel(*grace_secs);
                unchanged = !is_change;
                if is_change {
                    expected.requested_grace_secs = Some(*grace_secs);
                    expected.pushed();
                }
            }
            (Operation::Signal { name }, _) => {
                // Only what stands beside the flow changes.
                (is_change, unchanged) = (false, !self.flows[flow].signals.insert(*name));
                if !unchanged {
                    self.flows[flow].pushed();
                }
            }
            (Operation::Restart { .. }, Answer::Restarted(record, _)) => self.take_restart(flow, record),
            (Operation::Remove { .. }, _) => {
                let expected = &mut self.flows[flow];
                (expected.status, expected.inputs, expected.active) = (Status::Gone, 0, false);
            }
            (operation, answer) => panic!("{answer:?} to {operation:?}"),
        }
        if is_change {
            self.raise(flow);
        }
        if !call.request_id.is_empty() {
            self.results.insert((who, call.request_id.clone()), (flow, unchanged));
        }
        self.past_requests.remember(who, &call.request_id, call);
    }

    fn check_answer(&self, who: u32, call: &Call, answer: &Answer, end: End) {
        let result = self.results.get(&(who, call.request_id.clone()));
        let made = result.filter(|_| matches!(call.operation, Operation::Create { .. }));
        let flow = match (&call.operation, made) {
            (_, Some((flow, _))) => *flow,
            (Operation::Create { .. }, None) => self.flows.len() - 1,
            _ => call.flow,
        };
        match answer {
            Answer::Nothing => {}
            Answer::Flow(record, _) => self.flows[flow].check(record),
            Answer::Pushed(record, unchanged) => {
                self.flows[flow].check(record);
                assert!(result.is_none_or(|result| result.1 == *unchanged), "{who} asks {call:?}");
            }
            Answer::Restarted(record, restarted) => {
                self.flows[flow].check(record);
                assert_eq!(*restarted, end == End::Made, "{who} asks {call:?}");
            }
        }
    }
}
