//! Random operations against a short reference of what a flow is.

use std::collections::BTreeSet;

use keys::Layout;
use kv::Cmd;
use model::id::Uid;
use model::{FlowId, FlowInput, OwnerId};
use proptest::prelude::*;
use proto::internal::v1 as wire;
use proto::internal::v1::CommitRefusal;
use proto::v1;
use storage::Config;
use testkit::{RedisCluster, RedisServer};

use crate::places::Redis;
use crate::stage::{CONTEXT, EXECUTOR, Running, Stage, create, script};

#[derive(Debug, Clone)]
enum Op {
    Create { nodes: u32 },
    Add { flow: usize },
    Start { flow: usize, owner: u8 },
    Take { flow: usize, owner: u8 },
    Commit { flow: usize, wrong: Wrong, end: bool, rests: bool, taken: usize },
    Again { flow: usize },
    Cancel { flow: usize, grace_secs: u32 },
    Signal { flow: usize, name: u8 },
    Restart { flow: usize },
    Remove { flow: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Owner,
    Epoch,
    LastCommit,
    Uid,
}

fn any_op() -> impl Strategy<Value = Op> {
    let wrong = prop_oneof![
        4 => Just(Wrong::Nothing),
        1 => Just(Wrong::Owner),
        1 => Just(Wrong::Epoch),
        1 => Just(Wrong::LastCommit),
        1 => Just(Wrong::Uid),
    ];
    let flow = 0_usize..3;
    prop_oneof![
        2 => (1_u32..3).prop_map(|nodes| Op::Create { nodes }),
        3 => flow.clone().prop_map(|flow| Op::Add { flow }),
        3 => (flow.clone(), 0_u8..2).prop_map(|(flow, owner)| Op::Start { flow, owner }),
        1 => (flow.clone(), 0_u8..2).prop_map(|(flow, owner)| Op::Take { flow, owner }),
        5 => (flow.clone(), wrong, prop::bool::weighted(0.2), any::<bool>(), 0_usize..3)
            .prop_map(|(flow, wrong, end, rests, taken)| Op::Commit { flow, wrong, end, rests, taken }),
        2 => flow.clone().prop_map(|flow| Op::Again { flow }),
        1 => (flow.clone(), 0_u32..3).prop_map(|(flow, grace_secs)| Op::Cancel { flow, grace_secs }),
        2 => (flow.clone(), 0_u8..4).prop_map(|(flow, name)| Op::Signal { flow, name }),
        1 => flow.clone().prop_map(|flow| Op::Restart { flow }),
        1 => flow.prop_map(|flow| Op::Remove { flow }),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Created,
    Started,
    Finished,
    Gone,
}

/// What there should be of one flow.
#[derive(Debug)]
struct Expected {
    running: Running,
    status: Status,
    has_nodes: bool,
    /// With which grace.
    cancel_wished: Option<u32>,
    signals: BTreeSet<u8>,
    /// How many wait for the owner.
    inputs: usize,
    /// Whether it has something to do now.
    active: bool,
    generation: u32,
    is_owned: bool,
    last: Option<(wire::CommitRequest, u64)>,
}

impl Expected {
    /// Something was brought for its owner.
    fn pushed(&mut self) {
        if self.status == Status::Started {
            self.inputs += 1;
            self.active = true;
        }
    }
}

struct Reference<R> {
    stage: Stage<R>,
    flows: Vec<Expected>,
    owners: [String; 2],
    revision: u64,
}

impl<R: Redis> Reference<R> {
    async fn new(redis: R, layout: Layout) -> Self {
        let stage = Stage::with(redis, Config { layout, ..Config::default() }).await;
        let revision = stage.revision().await;
        let owners = [OwnerId::random().to_string(), OwnerId::random().to_string()];
        Self { stage, flows: Vec::new(), owners, revision }
    }

    /// Does it, and checks that it came to what it should, and to at most one change.
    async fn apply(&mut self, op: Op) {
        let changed = match op {
            Op::Create { nodes } => self.create(nodes).await,
            Op::Add { flow } if flow < self.flows.len() => self.add(flow).await,
            Op::Start { flow, owner } if flow < self.flows.len() => self.start(flow, owner).await,
            Op::Take { flow, owner } if flow < self.flows.len() => self.take(flow, owner).await,
            Op::Commit { flow, wrong, end, rests, taken } if flow < self.flows.len() => {
                self.commit(flow, wrong, end, rests, taken).await
            }
            Op::Again { flow } if flow < self.flows.len() => self.again(flow).await,
            Op::Cancel { flow, grace_secs } if flow < self.flows.len() => self.cancel(flow, grace_secs).await,
            Op::Signal { flow, name } if flow < self.flows.len() => self.signal(flow, name).await,
            Op::Restart { flow } if flow < self.flows.len() => self.restart(flow).await,
            Op::Remove { flow } if flow < self.flows.len() => self.remove(flow).await,
            _ => false,
        };
        self.revision += u64::from(changed);
        assert_eq!(self.stage.revision().await, self.revision, "one change, one revision");
    }

    async fn create(&mut self, nodes: u32) -> bool {
        let answer = self.stage.flows().create_flow(create(nodes)).await.unwrap().into_inner();
        let flow = answer.flow.unwrap().flow.unwrap();
        let running = Running {
            id: flow.id,
            uid: flow.uid,
            context_uid: self.stage.context_uid.clone(),
            first_job: answer.first_job_id,
            count: nodes,
            owner: self.owners[0].clone(),
            epoch: 0,
            last_commit: String::new(),
            revision: flow.revision,
        };
        let status = Status::Created;
        self.flows.push(Expected {
            running,
            status,
            has_nodes: false,
            cancel_wished: None,
            signals: BTreeSet::new(),
            inputs: 0,
            active: false,
            generation: 1,
            is_owned: true,
            last: None,
        });
        true
    }

    async fn add(&mut self, flow: usize) -> bool {
        let expected = &mut self.flows[flow];
        let result = self.stage.flows().add_nodes(expected.running.add_nodes(&script("true"))).await;
        assert_eq!(result.is_ok(), expected.status == Status::Created);
        let changed = result.is_ok() && !expected.has_nodes;
        expected.has_nodes |= changed;
        changed
    }

    async fn start(&mut self, flow: usize, owner: u8) -> bool {
        let expected = &mut self.flows[flow];
        let owner = self.owners[usize::from(owner)].clone();
        let request = wire::StartFlowRequest {
            context_id: CONTEXT,
            flow_id: expected.running.id,
            flow_uid: expected.running.uid.clone(),
            owner: owner.clone(),
            on_behalf_of: EXECUTOR,
            ..Default::default()
        };
        let result = self.stage.flows().start_flow(request).await;
        let starts = expected.status == Status::Created && expected.has_nodes;
        let running = &mut expected.running;
        let repeated = expected.status == Status::Started && running.owner == owner && running.epoch == 1;
        assert_eq!(result.is_ok(), starts || repeated);
        if starts {
            let record = result.unwrap().into_inner().flow.unwrap();
            assert_eq!(record.epoch, 1);
            (running.owner, running.epoch, running.last_commit) = (owner, 1, record.last_commit);
            expected.status = Status::Started;
            expected.active = true;
        }
        starts
    }

    async fn take(&mut self, flow: usize, owner: u8) -> bool {
        let expected = &mut self.flows[flow];
        let owner = self.owners[usize::from(owner)].clone();
        let flow_id = expected.running.id;
        let request = wire::TakeFlowRequest { context_id: CONTEXT, flow_id, owner: owner.clone() };
        let result = self.stage.flows().take_flow(request).await;
        let runs = expected.status == Status::Started;
        assert_eq!(result.is_ok(), runs);
        if let Ok(answer) = result {
            let record = answer.into_inner().flow.unwrap();
            assert_eq!(record.epoch, expected.running.epoch + 1);
            let running = &mut expected.running;
            (running.owner, running.epoch) = (owner, record.epoch);
            running.last_commit = record.last_commit;
            // What the former owner sends again is fenced.
            expected.is_owned = true;
            expected.last = None;
        }
        runs
    }

    async fn commit(&mut self, flow: usize, wrong: Wrong, end: bool, rests: bool, taken: usize) -> bool {
        let expected = &mut self.flows[flow];
        let mut request = if end { expected.running.end() } else { expected.running.step() };
        request.rests = rests;
        request.inputs_taken = u32::try_from(taken.min(expected.inputs)).unwrap();
        match wrong {
            Wrong::Nothing => {}
            Wrong::Owner => request.owner = Uid::random().to_string(),
            Wrong::Epoch => request.epoch += 1,
            Wrong::LastCommit => request.last_commit = Uid::random().to_string(),
            Wrong::Uid => request.flow_uid = Uid::random().to_string(),
        }
        let answer = self.stage.commit(request.clone()).await;
        let refusal = match (expected.status, wrong) {
            (Status::Gone, _) | (_, Wrong::Uid) => CommitRefusal::Gone,
            // After it was started again nobody owns it.
            (Status::Started, Wrong::Nothing) if expected.is_owned => CommitRefusal::Unspecified,
            _ => CommitRefusal::Fenced,
        };
        assert_eq!(answer.refusal(), refusal, "{:?} {wrong:?}: {}", expected.status, answer.detail);
        assert_eq!(answer.commit_id, request.commit_id);
        let applied = refusal == CommitRefusal::Unspecified;
        if applied {
            assert_eq!(answer.revision, self.revision + 1);
            expected.running.last_commit = request.commit_id.clone();
            expected.inputs -= request.inputs_taken as usize;
            expected.active = !(end || request.rests && expected.inputs == 0);
            if end {
                expected.inputs = 0;
                expected.status = Status::Finished;
            }
            expected.last = Some((request, answer.revision));
        }
        applied
    }

    /// The last commit once more, as after a lost answer.
    async fn again(&mut self, flow: usize) -> bool {
        let expected = &self.flows[flow];
        if let Some((request, revision)) = &expected.last {
            let answer = self.stage.commit(request.clone()).await;
            if expected.status == Status::Gone {
                assert_eq!(answer.refusal(), CommitRefusal::Gone);
            } else {
                assert_eq!(answer.refusal(), CommitRefusal::Unspecified);
                assert_eq!(answer.revision, *revision);
            }
        }
        false
    }

    async fn cancel(&mut self, flow: usize, grace_secs: u32) -> bool {
        let expected = &mut self.flows[flow];
        let request = expected.running.push(&FlowInput::Cancel { grace_secs });
        let result = self.stage.flows().push_input(request).await;
        assert_eq!(result.is_ok(), expected.status != Status::Gone);
        let changed = match expected.status {
            Status::Created => expected.cancel_wished.is_none(),
            Status::Started => expected.cancel_wished.is_none_or(|wished| grace_secs < wished),
            Status::Finished | Status::Gone => false,
        };
        if let Ok(answer) = result {
            assert_eq!(answer.into_inner().unchanged, !changed);
        }
        if changed {
            expected.cancel_wished = Some(grace_secs);
            expected.pushed();
        }
        changed
    }

    /// Only what stands beside the flow changes.
    async fn signal(&mut self, flow: usize, name: u8) -> bool {
        let expected = &mut self.flows[flow];
        let request = expected.running.push(&FlowInput::Signal { name: format!("s{name}").parse().unwrap() });
        let result = self.stage.flows().push_input(request).await;
        assert_eq!(result.is_ok(), expected.status != Status::Gone);
        if let Ok(answer) = result {
            let is_new = expected.signals.insert(name);
            assert_eq!(answer.into_inner().unchanged, !is_new);
            if is_new {
                expected.pushed();
            }
        }
        false
    }

    async fn restart(&mut self, flow: usize) -> bool {
        let expected = &mut self.flows[flow];
        let request = wire::RestartFlowRequest {
            context_id: CONTEXT,
            flow_id: expected.running.id,
            flow_uid: expected.running.uid.clone(),
            on_behalf_of: EXECUTOR,
            rerun_json: r#"{"scope":"failed"}"#.to_owned(),
            generation: expected.generation,
            ..Default::default()
        };
        let result = self.stage.flows().restart_flow(request).await;
        let restarts = expected.status == Status::Finished;
        assert_eq!(result.is_ok(), restarts);
        if let Ok(answer) = result {
            let record = answer.into_inner().flow.unwrap();
            expected.generation += 1;
            expected.running.epoch += 1;
            assert_eq!((record.epoch, record.owner.as_str()), (expected.running.epoch, ""));
            // Nobody owns it before somebody takes it.
            expected.running.owner = Uid::random().to_string();
            expected.running.last_commit = record.last_commit;
            expected.status = Status::Started;
            expected.active = true;
            expected.cancel_wished = None;
            expected.is_owned = false;
            expected.last = None;
        }
        restarts
    }

    async fn remove(&mut self, flow: usize) -> bool {
        let expected = &mut self.flows[flow];
        let flow_id = expected.running.id;
        let request = wire::RemoveFlowRequest {
            context_id: CONTEXT,
            flow_id,
            on_behalf_of: EXECUTOR,
            ..Default::default()
        };
        let result = self.stage.flows().remove_flow(request).await;
        let given_up = expected.status == Status::Created && expected.cancel_wished.is_some();
        let goes = expected.status == Status::Finished || given_up;
        assert_eq!(result.is_ok(), goes);
        if goes {
            expected.status = Status::Gone;
            expected.inputs = 0;
            expected.active = false;
        }
        goes
    }

    /// What is kept is what is expected, and the events tell of every change.
    async fn check(&self) {
        for expected in &self.flows {
            let flow_id = expected.running.id;
            let request = wire::ReadFlowRequest { context_id: CONTEXT, flow_id, on_behalf_of: 0, purpose: 0 };
            let status = match self.stage.flows().read_flow(request).await {
                Err(_) => Status::Gone,
                Ok(answer) => match answer.into_inner().flow.unwrap().flow.unwrap().status() {
                    v1::FlowStatus::Created => Status::Created,
                    v1::FlowStatus::Started => Status::Started,
                    _ => Status::Finished,
                },
            };
            assert_eq!(status, expected.status);
            let active = Cmd::new("SISMEMBER").arg(&self.stage.keys().flows_active());
            let active = self.stage.ask(active.arg(&expected.running.member())).await.int().unwrap() == 1;
            assert_eq!(active, expected.active);
            let inputs = self.stage.keys().flow_inputs(FlowId(flow_id));
            let inputs = self.stage.ask(Cmd::new("LLEN").arg(&inputs)).await.uint().unwrap();
            assert_eq!(inputs, expected.inputs as u64, "inputs are trimmed exactly");
            if status == Status::Gone {
                let nodes = self.stage.keys().flow_nodes(FlowId(flow_id));
                assert_eq!(self.stage.ask(Cmd::new("EXISTS").arg(&nodes)).await.int(), Ok(0));
            }
        }
        let keys = self.stage.keys();
        let events = self.stage.ask(Cmd::new("XRANGE").arg(&keys.events()).arg("-").arg("+")).await;
        let mut revisions: Vec<u64> = Vec::new();
        for event in events.entries().unwrap() {
            let (revision, n) = event.id.split_once('-').unwrap();
            let (revision, n): (u64, u64) = (revision.parse().unwrap(), n.parse().unwrap());
            if n == 1 {
                revisions.push(revision);
            }
            assert_eq!(revisions.last(), Some(&revision));
        }
        assert_eq!(revisions, (1..=self.revision).collect::<Vec<_>>(), "no change without an event");
    }
}

fn run(redis: impl Redis, layout: Layout) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // One service for all cases: each adds flows of its own.
    let mut reference = runtime.block_on(Reference::new(redis, layout));
    let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let reference = std::cell::RefCell::new(&mut reference);
    runner
        .run(&prop::collection::vec(any_op(), 1..40), |ops| {
            let mut reference = reference.borrow_mut();
            reference.flows.clear();
            runtime.block_on(async {
                for op in ops {
                    reference.apply(op).await;
                }
                reference.check().await;
            });
            Ok(())
        })
        .unwrap();
}

#[test]
fn flows_are_as_the_reference_says() {
    run(RedisServer::start(), Layout::Database);
}

#[test]
fn flows_are_as_the_reference_says_with_hash_tags() {
    run(RedisServer::start(), Layout::HashTag);
}

#[test]
fn flows_are_as_the_reference_says_in_a_cluster() {
    run(RedisCluster::start(), Layout::HashTag);
}
