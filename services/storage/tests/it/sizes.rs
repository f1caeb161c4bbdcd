//! However large records are, those who read them get all of them, in answers that they can read.

use std::collections::{BTreeMap, BTreeSet};

use identity::Identity;
use keys::Layout;
use kv::Cmd;
use model::{ActorId, RunnerId, limits};
use proto::convert::runner::{from_wire, wire_bytes};
use proto::internal::v1 as wire;
use proto::internal::v1::change_runner_request::Change;
use proto::v1;
use rpc::ErrorView;
use tonic::{Code, Status};

use crate::stage::{ADMIN, CONTEXT, READER, STRANGER, Stage, failure};

/// A registration that is as large as it may be.
fn largest(runner_id: u32) -> v1::RegisterRunnerRequest {
    let key = |number: usize| format!("{number:0>width$}", width = limits::LABEL_KEY_BYTES_MAX);
    let value = "v".repeat(limits::LABEL_VALUE_BYTES_MAX);
    v1::RegisterRunnerRequest {
        context_id: CONTEXT,
        runner_id,
        address: format!("grpc://{}:65535", "h".repeat(limits::HOST_BYTES_MAX)),
        topic: "t".repeat(limits::RUNNER_TOPIC_BYTES_MAX),
        script_types: vec![1; limits::RUNNER_SCRIPT_TYPES_MAX],
        labels: (0..limits::LABELS_MAX).map(|number| (key(number), value.clone())).collect(),
        ..Default::default()
    }
}

async fn put(stage: &Stage, runner: v1::RegisterRunnerRequest) -> Result<v1::Runner, Status> {
    let put = wire::PutRunnerRequest { runner: Some(runner), on_behalf_of: ADMIN };
    Ok(stage.runners().put_runner(put).await?.into_inner().runner.unwrap())
}

/// Makes the record of a runner as large as it could be before there were limits.
async fn age(stage: &Stage, runner: u32, bytes: usize) {
    let labels = serde_json::to_string(&BTreeMap::from([("k", "v".repeat(bytes))])).unwrap();
    let key = stage.keys().runner(RunnerId(runner));
    stage.command(Cmd::new("HSET").arg(&key).arg("labels").arg(&labels)).await;
}

fn bytes(runners: &[v1::Runner]) -> usize {
    runners.iter().map(|runner| wire_bytes(&from_wire(runner.clone()).unwrap())).sum()
}

fn ask() -> wire::ReadRunnersRequest {
    wire::ReadRunnersRequest {
        context_id: CONTEXT,
        on_behalf_of: READER,
        page_size: 1000,
        ..Default::default()
    }
}

/// The pages of all runners, as their numbers and bytes.
async fn pages(stage: &Stage) -> Vec<(Vec<u32>, usize)> {
    let (mut pages, mut ask) = (Vec::new(), ask());
    loop {
        let page = stage.runners().read_runners(ask.clone()).await.unwrap().into_inner();
        pages.push((page.runners.iter().map(|runner| runner.id).collect(), bytes(&page.runners)));
        ask.page_token = page.next_page_token;
        if ask.page_token.is_empty() {
            return pages;
        }
    }
}

/// Parts in which a watch sends all runners, as their numbers and bytes.
async fn parts(stage: &Stage) -> Vec<(Vec<u32>, usize)> {
    let mut parts = Vec::new();
    let mut told = stage.runners().watch_runners(wire::WatchRunnersRequest {}).await.unwrap().into_inner();
    loop {
        let part = told.message().await.unwrap().unwrap();
        let runners: Vec<_> = part.runners.into_iter().filter_map(|record| record.runner).collect();
        if !runners.is_empty() {
            parts.push((runners.iter().map(|runner| runner.id).collect(), bytes(&runners)));
        }
        if part.snapshot_end {
            return parts;
        }
    }
}

#[tokio::test]
async fn the_largest_runners_are_read_by_all_who_have_to() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        for id in 1..=100 {
            put(&stage, largest(id)).await.unwrap();
        }
        let expected: Vec<u32> = (1..=100).collect();
        for found in [pages(&stage).await, parts(&stage).await] {
            assert!(found.len() > 2 && found.iter().all(|(_, bytes)| *bytes <= limits::PAGE_BYTES_MAX));
            assert_eq!(found.into_iter().flat_map(|(ids, _)| ids).collect::<Vec<_>>(), expected);
        }

        // What is from before the limits comes alone, and nothing is missing behind it.
        for id in [3, 4, 50] {
            age(&stage, id, 2_500_000).await;
        }
        for found in [pages(&stage).await, parts(&stage).await] {
            let alone = |id: u32| found.iter().any(|(ids, _)| *ids == [id]);
            assert!(alone(3) && alone(4) && alone(50));
            assert_eq!(found.into_iter().flat_map(|(ids, _)| ids).collect::<Vec<_>>(), expected);
        }
        let one = wire::ReadRunnerRequest { context_id: CONTEXT, runner_id: 50, on_behalf_of: READER };
        let old = stage.runners().read_runner(one).await.unwrap().into_inner().runner.unwrap();
        assert_eq!(old.labels["k"].len(), 2_500_000);
    }
}

#[tokio::test]
async fn a_runner_is_read_by_whom_it_is_there_for() {
    let stage = Stage::new(Layout::Database).await;
    let made = put(&stage, largest(1)).await.unwrap();
    let one = wire::ReadRunnerRequest { context_id: CONTEXT, runner_id: 1, on_behalf_of: READER };
    let read = stage.runners().read_runner(one).await.unwrap().into_inner();
    assert_eq!(read.runner, Some(made));
    for refused in [
        wire::ReadRunnerRequest { on_behalf_of: STRANGER, ..one },
        wire::ReadRunnerRequest { runner_id: 2, ..one },
    ] {
        assert_eq!(failure(stage.runners().read_runner(refused).await).0, Code::NotFound);
    }
    let delete = v1::DeleteRunnerRequest { context_id: CONTEXT, runner_id: 1, ..Default::default() };
    let delete = wire::ChangeRunnerRequest { change: Some(Change::Delete(delete)), on_behalf_of: ADMIN };
    stage.runners().change_runner(delete).await.unwrap();
    assert_eq!(failure(stage.runners().read_runner(one).await).0, Code::NotFound, "it was deleted");
}

/// The fields that a refusal names.
fn fields<T>(result: Result<T, Status>) -> Vec<String> {
    let refused = ErrorView::from(&result.err().unwrap());
    assert_eq!(refused.code, Code::InvalidArgument);
    refused.violations.into_iter().map(|violation| violation.field).collect()
}

#[tokio::test]
async fn a_page_token_of_runners_is_its_callers_and_contexts() {
    let stage = Stage::new(Layout::Database).await;
    for id in 1..=3 {
        put(&stage, largest(id)).await.unwrap();
    }
    let first = wire::ReadRunnersRequest { page_size: 2, ..ask() };
    let page = stage.runners().read_runners(first.clone()).await.unwrap().into_inner();
    assert_eq!(page.runners.len(), 2);
    let next = wire::ReadRunnersRequest { page_token: page.next_page_token.clone(), ..first.clone() };
    let last = stage.runners().read_runners(next.clone()).await.unwrap().into_inner();
    assert_eq!((last.runners[0].id, last.next_page_token.as_str()), (3, ""));
    let guessed = hex::encode(format!("{CONTEXT}:{READER}:2"));
    for wrong in [
        wire::ReadRunnersRequest { on_behalf_of: ADMIN, ..next.clone() },
        wire::ReadRunnersRequest { context_id: 2, ..next.clone() },
        wire::ReadRunnersRequest { page_token: guessed, ..first.clone() },
    ] {
        assert_eq!(fields(stage.runners().read_runners(wrong).await), ["page_token"]);
    }
}

#[tokio::test]
async fn a_request_id_and_a_position_are_looked_at_with_everything_else() {
    let stage = Stage::new(Layout::Database).await;
    let request_id = "two words".to_owned();
    let bad = v1::RegisterRunnerRequest { request_id: request_id.clone(), ..Default::default() };
    assert_eq!(fields(put(&stage, bad).await), ["request_id", "context_id", "address"]);
    let update = v1::UpdateRunnerRequest { request_id, ..Default::default() };
    let update = wire::ChangeRunnerRequest { change: Some(Change::Update(update)), on_behalf_of: ADMIN };
    let found = fields(stage.runners().change_runner(update).await);
    assert_eq!(found, ["request_id", "context_id", "runner_id", "address"]);
    let follow = wire::FollowRunnersRequest {
        context_id: CONTEXT,
        on_behalf_of: READER,
        position: "nowhere".to_owned(),
    };
    let refused = stage.runners().follow_runners(follow).await;
    assert_eq!(fields(refused), ["resume_position"], "as whoever watches calls it");
}

#[tokio::test]
async fn lists_name_every_invalid_field_of_a_request() {
    let stage = Stage::new(Layout::Database).await;
    let (page_size, page_token) = (1001, || "x".to_owned());
    let who = |id: u32| Identity::Actor(ActorId(id));
    let bad = wire::ReadFlowsRequest {
        context_id: CONTEXT,
        on_behalf_of: READER,
        status: 99,
        page_size,
        page_token: page_token(),
        ..Default::default()
    };
    assert_eq!(fields(stage.flows().read_flows(bad).await), ["status", "page_size", "page_token"]);
    let bad = wire::ReadNodesRequest {
        context_id: CONTEXT,
        on_behalf_of: READER,
        states: vec![99],
        job_ids: vec![1; 1001],
        page_size,
        page_token: page_token(),
        ..Default::default()
    };
    let named = fields(stage.flows().read_nodes(bad).await);
    assert_eq!(named, ["job_ids", "states", "page_size", "page_token"]);
    let list = v1::ListMessagesRequest {
        context_id: CONTEXT,
        message_type: 99,
        status: 99,
        page_size,
        page_token: page_token(),
        ..Default::default()
    };
    let bad = wire::FindMessagesRequest { list: Some(list), on_behalf_of: READER };
    let named = fields(stage.message_box().find_messages(bad).await);
    assert_eq!(named, ["message_type", "status", "page_size", "page_token"]);

    let both = ["page_size", "page_token"];
    let list = v1::ListDeadLettersRequest { context_id: CONTEXT, page_size, page_token: page_token() };
    let bad = wire::FindDeadLettersRequest { list: Some(list), on_behalf_of: READER };
    assert_eq!(fields(stage.message_box().find_dead_letters(bad).await), both);
    let bad = v1::ListJobsRequest {
        context_id: CONTEXT,
        page_size,
        page_token: page_token(),
        ..Default::default()
    };
    assert_eq!(fields(stage.jobs(READER).list_jobs(bad).await), both);
    let bad = v1::ListActorsRequest { page_size, page_token: page_token(), context_id: 0 };
    assert_eq!(fields(stage.actors(who(READER)).list_actors(bad).await), both);
    let bad = v1::ListContextsRequest { page_size, page_token: page_token() };
    assert_eq!(fields(stage.contexts(who(READER)).list_contexts(bad).await), both);
    let bad = v1::ListAuditEntriesRequest {
        context_id: CONTEXT,
        page_size,
        page_token: page_token(),
        ..Default::default()
    };
    assert_eq!(fields(stage.contexts(who(ADMIN)).list_audit_entries(bad).await), both);
}

#[tokio::test]
async fn actors_with_long_addresses_are_all_listed() {
    let stage = Stage::new(Layout::Database).await;
    // Their hosts had no limit once.
    let (keys, connection) = stage.global();
    for id in [ADMIN, READER, STRANGER] {
        let address = serde_json::to_string(&[format!("grpc://{}:1", "h".repeat(2_500_000))]).unwrap();
        let change = Cmd::new("HSET").arg(&keys.actor(ActorId(id))).arg("address").arg(&address);
        connection.cmd(change).await.unwrap();
    }
    let mut found = BTreeSet::new();
    let mut list = v1::ListActorsRequest { page_size: 1000, ..Default::default() };
    loop {
        let page = stage.actors(Identity::Admin).list_actors(list.clone()).await.unwrap().into_inner();
        found.extend(page.actors.iter().map(|actor| actor.id));
        list.page_token = page.next_page_token;
        if list.page_token.is_empty() {
            break;
        }
    }
    assert!(found.is_superset(&[ADMIN, READER, STRANGER].into()), "{found:?}");
    let address = vec![format!("grpc://{}:1", "h".repeat(limits::HOST_BYTES_MAX + 1))];
    let update = v1::UpdateActorRequest { id: READER, address, ..Default::default() };
    let refused = stage.actors(Identity::Actor(ActorId(READER))).update_actor(update).await;
    assert_eq!(fields(refused), ["address[0]"]);
}

#[tokio::test]
async fn a_request_that_needs_an_id_when_none_is_left_is_refused_with_the_limit() {
    let stage = Stage::new(Layout::Database).await;
    let ids = stage.key_of("ids");
    stage.command(Cmd::new("HSET").arg(&ids).arg("runner").arg(u32::MAX)).await;
    let runner = v1::RegisterRunnerRequest { runner_id: 0, ..largest(0) };
    let refused = ErrorView::from(&put(&stage, runner).await.unwrap_err());
    assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
    let metadata = ["limit", "max", "asked"].map(|name| refused.metadata[name].as_str());
    assert_eq!(metadata, ["id_max", "4294967295", "4294967296"]);
}
