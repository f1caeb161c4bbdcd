//! Random operations on runner records against a short reference of what they are.

use std::collections::BTreeMap;

use keys::ContextKey;
use model::RunnerId;
use proptest::prelude::*;
use proto::internal::v1 as wire;
use proto::internal::v1::change_runner_request::Change;
use proto::v1;
use tonic::{Code, Status};

use crate::conformance::{self, Chances, End, Family, Kept, PastRequests, Requesting};
use crate::places::Redis;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage};

#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Register,
    Update,
    Drain,
    Resume,
    Delete,
    /// An earlier request, with the same body or with another one.
    Again,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Register(v1::RegisterRunnerRequest),
    Change(Change),
}

#[derive(Debug)]
struct Record {
    label: String,
    revision: u64,
    is_drained: bool,
    is_gone: bool,
}

#[derive(Default)]
pub(crate) struct Runners {
    records: BTreeMap<u32, Record>,
    revision: u64,
    past_requests: PastRequests<Call>,
}

/// Subject of a change: runner, expected revision, request id.
fn subject(change: &Change) -> (u32, u64, &str) {
    match change {
        Change::Update(update) => (update.runner_id, update.expected_revision, &update.request_id),
        Change::Drain(drain) => (drain.runner_id, drain.expected_revision, &drain.request_id),
        Change::Delete(delete) => (delete.runner_id, delete.expected_revision, &delete.request_id),
    }
}

fn labels(label: &str) -> impl IntoIterator<Item = (String, String)> {
    [("zone".to_owned(), label.to_owned())]
}

impl Runners {
    fn call(&self, op: &Chances<What>) -> Option<(u32, Call)> {
        let &Chances { what, who, object, mask: label, number: builds, other, .. } = op;
        let request_id = op.request_id();
        // The last ones, of which some are gone, and one that never was.
        let last = self.records.keys().rev().take(6).copied().chain([9999]).collect::<Vec<_>>();
        let runner_id = last[object % last.len()];
        let revision = self.records.get(&runner_id).map_or(5, |record| record.revision);
        // Any, the last, or another.
        let expected_revision = [0, 0, revision, revision - 1][usize::from(builds) % 4];
        let address = format!("grpc://host:{}", 1 + u16::from(label));
        let (label, resume) = (label.to_string(), matches!(what, What::Resume));
        let change = match what {
            What::Register => {
                let request = v1::RegisterRunnerRequest {
                    request_id,
                    context_id: CONTEXT,
                    runner_id: if other { 0 } else { u32::try_from(object).ok()? % 200 + 1 },
                    address,
                    labels: labels(&label).into_iter().collect(),
                    ..Default::default()
                };
                return Some((who, Call::Register(request)));
            }
            What::Again => return self.past_requests.again(op, changed),
            What::Update => Change::Update(v1::UpdateRunnerRequest {
                request_id,
                context_id: CONTEXT,
                runner_id,
                expected_revision,
                address,
                labels: labels(&label).into_iter().collect(),
                ..Default::default()
            }),
            What::Drain | What::Resume => Change::Drain(v1::DrainRunnerRequest {
                request_id,
                context_id: CONTEXT,
                runner_id,
                expected_revision,
                resume,
            }),
            What::Delete => Change::Delete(v1::DeleteRunnerRequest {
                request_id,
                context_id: CONTEXT,
                runner_id,
                expected_revision,
            }),
        };
        Some((who, Call::Change(change)))
    }

    fn assert_kept(&self, said: &v1::Runner) {
        let record = &self.records[&said.id];
        let is = (&said.labels["zone"], said.revision, said.drain_time.is_some(), said.delete_time.is_some());
        assert_eq!(is, (&record.label, record.revision, record.is_drained, record.is_gone), "{said:?}");
    }
}

impl Requesting for Runners {
    type Call = Call;
    type Answer = v1::Runner;

    fn expect(&self, who: u32, call: &Call) -> End {
        match who {
            ADMIN => {}
            STRANGER => return End::UNSEEN,
            _ => return End::DENIED,
        }
        let request_id = match call {
            Call::Register(request) => &request.request_id,
            Call::Change(change) => subject(change).2,
        };
        if let Some(end) = self.past_requests.before(who, request_id, call) {
            return end;
        }
        match call {
            Call::Register(request) if self.records.contains_key(&request.runner_id) => {
                End::Refused(Code::AlreadyExists, "ALREADY_EXISTS")
            }
            Call::Register(_) => End::Made,
            Call::Change(change) => {
                let (id, expected, _) = subject(change);
                match self.records.get(&id).filter(|record| !record.is_gone) {
                    None => End::UNSEEN,
                    Some(record) if expected != 0 && expected != record.revision => {
                        End::Refused(Code::Aborted, "REVISION_MISMATCH")
                    }
                    Some(_) => End::Made,
                }
            }
        }
    }

    async fn perform(&self, stage: &Stage<impl Redis>, who: u32, call: Call) -> Result<v1::Runner, Status> {
        let mut runners = stage.runners();
        Ok(match call {
            Call::Register(request) => {
                let put = wire::PutRunnerRequest { runner: Some(request), on_behalf_of: who };
                runners.put_runner(put).await?.into_inner().runner.unwrap()
            }
            Call::Change(change) => {
                let change = wire::ChangeRunnerRequest { change: Some(change), on_behalf_of: who };
                runners.change_runner(change).await?.into_inner().runner.unwrap()
            }
        })
    }

    fn take(&mut self, who: u32, call: &Call, answer: &v1::Runner) {
        match call {
            Call::Register(request) => {
                assert!(request.runner_id == 0 || request.runner_id == answer.id);
                self.revision += 1;
                let label = request.labels["zone"].clone();
                let new = Record { label, revision: self.revision, is_drained: false, is_gone: false };
                assert!(self.records.insert(answer.id, new).is_none(), "no number is given twice");
                self.past_requests.remember(who, &request.request_id, call);
            }
            Call::Change(change) => {
                let (id, _, request_id) = subject(change);
                let record = self.records.get_mut(&id).unwrap();
                let is_so = matches!(change, Change::Drain(drain) if drain.resume != record.is_drained);
                match change {
                    Change::Update(update) => record.label.clone_from(&update.labels["zone"]),
                    Change::Drain(drain) => record.is_drained = !drain.resume,
                    Change::Delete(_) => record.is_gone = true,
                }
                if !is_so {
                    self.revision += 1;
                    record.revision = self.revision;
                }
                self.past_requests.remember(who, request_id, call);
            }
        }
    }

    fn check_answer(&self, _: u32, _: &Call, answer: &v1::Runner, _: End) {
        self.assert_kept(answer);
    }
}

/// Another body under the same request id.
fn changed(mut call: Call) -> Call {
    match &mut call {
        Call::Register(request) => request.topic.push('x'),
        Call::Change(Change::Update(update)) => update.expected_revision += 1000,
        Call::Change(Change::Drain(drain)) => drain.resume = !drain.resume,
        Call::Change(Change::Delete(delete)) => {
            // The same fields, but it means something else.
            let v1::DeleteRunnerRequest { request_id, context_id, runner_id, expected_revision } =
                delete.clone();
            let resume = false;
            let drain =
                v1::DrainRunnerRequest { request_id, context_id, runner_id, expected_revision, resume };
            call = Call::Change(Change::Drain(drain));
        }
    }
    call
}

impl Family for Runners {
    type Op = Chances<What>;

    fn any_op() -> impl Strategy<Value = Chances<What>> {
        let what = prop_oneof![
            2 => Just(What::Register),
            3 => Just(What::Update),
            2 => Just(What::Drain),
            2 => Just(What::Resume),
            1 => Just(What::Delete),
            3 => Just(What::Again),
        ];
        let who = prop_oneof![8 => Just(ADMIN), 1 => Just(EXECUTOR), 1 => Just(READER), 1 => Just(STRANGER)];
        Chances::any(what, who)
    }

    async fn new(_: &Stage<impl Redis>) -> Self {
        Self { revision: 1, ..Self::default() }
    }

    async fn apply(&mut self, stage: &Stage<impl Redis>, op: Chances<What>) {
        if let Some((who, call)) = self.call(&op) {
            self.request(stage, who, call).await;
        }
    }

    async fn check(&mut self, stage: &Stage<impl Redis>) {
        for (who, may) in [(ADMIN, true), (READER, true), (STRANGER, false)] {
            // More than there can be: a page of the usual size would leave some out.
            let (context_id, page_size) = (CONTEXT, 1000);
            let read =
                wire::ReadRunnersRequest { context_id, on_behalf_of: who, page_size, ..Default::default() };
            let read = stage.runners().read_runners(read).await;
            assert_eq!(read.is_ok(), may);
            let Ok(read) = read else { continue };
            let runners = read.into_inner().runners;
            let there = self.records.iter().filter(|(_, record)| !record.is_gone).map(|(id, _)| *id);
            assert!(runners.iter().map(|runner| runner.id).eq(there), "those that are there, by number");
            runners.iter().for_each(|runner| self.assert_kept(runner));
        }
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::on_stage(self.revision);
        self.past_requests.keep(CONTEXT, &mut kept);
        for (id, record) in &self.records {
            let key = ContextKey::Runner(RunnerId(*id));
            if record.is_gone {
                kept.fading(CONTEXT, &key);
                kept.key(CONTEXT, &ContextKey::RunnersDeleted);
            } else {
                kept.key(CONTEXT, &key);
                kept.key(CONTEXT, &ContextKey::Runners);
            }
        }
        kept
    }
}

#[test]
fn runners_match_the_reference() {
    conformance::with_databases::<Runners>(20);
}

#[test]
fn runners_match_the_reference_with_hash_tags() {
    conformance::with_hash_tags::<Runners>(20);
}

#[test]
fn runners_match_the_reference_in_a_cluster() {
    conformance::in_a_cluster::<Runners>(20);
}
