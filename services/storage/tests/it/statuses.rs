//! Lists of flows by status: kept with each change, and made where an earlier version kept none.

use keys::Layout;
use kv::Cmd;
use model::{FlowId, FlowInput, FlowStatus, Timestamp};
use proto::convert::enums;
use proto::internal::v1 as wire;

use crate::places::{Redis, scenarios};
use crate::stage::{CONTEXT, EXECUTOR, READER, Running, Stage, create};

/// More than are looked at to find one.
const MANY: usize = 60;

async fn of(stage: &Stage<impl Redis>, status: FlowStatus) -> Vec<u32> {
    let request = wire::ReadFlowsRequest {
        context_id: CONTEXT,
        on_behalf_of: READER,
        status: enums::flow_status_to_wire(status).into(),
        page_size: 10,
        ..Default::default()
    };
    let page = stage.flows().read_flows(request).await.unwrap().into_inner();
    page.flows.iter().map(|flow| flow.id).collect()
}

/// Flows in the list of a status, newest first.
async fn listed(stage: &Stage<impl Redis>, status: FlowStatus) -> Vec<u32> {
    let ask = Cmd::new("ZREVRANGE").arg(&stage.keys().flows_of(status)).arg(0).arg(-1);
    let ids = stage.command(ask).await.texts().unwrap();
    ids.iter().map(|id| id.parse().unwrap()).collect()
}

/// How many records of flows were read since the server's counters were reset.
async fn records_read(stage: &Stage<impl Redis>) -> u64 {
    let stats = stage.command(Cmd::new("INFO").arg("commandstats")).await.text().unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hmget:calls="));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

async fn end(stage: &Stage<impl Redis>, flow: &mut Running) {
    let step = flow.end();
    stage.apply(flow, step).await;
}

async fn remove(stage: &Stage<impl Redis>, flow: &Running) {
    let request = wire::RemoveFlowRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: EXECUTOR,
        ..Default::default()
    };
    stage.flows().remove_flow(request).await.unwrap();
}

#[tokio::test]
async fn a_rare_status_is_found_without_a_look_at_all_flows() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let mut rare = stage.started(1).await;
        end(&stage, &mut rare).await;
        for _ in 0..MANY {
            stage.flows().create_flow(create(1)).await.unwrap();
        }
        stage.command(Cmd::new("CONFIG").arg("RESETSTAT")).await;
        assert_eq!(of(&stage, FlowStatus::Finished).await, [rare.id]);
        let read = records_read(&stage).await;
        assert!(read < 10, "{read} records were read to find one flow");
    }
}

scenarios! { a_flow_stands_in_the_list_of_its_status, flows_of_an_earlier_version_are_listed }

async fn a_flow_stands_in_the_list_of_its_status(stage: Stage<impl Redis>) {
    let created = stage.created(1).await;
    assert_eq!(listed(&stage, FlowStatus::Created).await, [created.id]);
    let mut flow = stage.start_flow(created).await;
    assert_eq!(listed(&stage, FlowStatus::Created).await, [] as [u32; 0]);
    assert_eq!(of(&stage, FlowStatus::Started).await, [flow.id]);
    end(&stage, &mut flow).await;
    assert_eq!(listed(&stage, FlowStatus::Started).await, [] as [u32; 0]);
    assert_eq!(of(&stage, FlowStatus::Finished).await, [flow.id]);
    stage.flows().restart_flow(flow.restart()).await.unwrap();
    assert_eq!(listed(&stage, FlowStatus::Finished).await, [] as [u32; 0]);
    assert_eq!(of(&stage, FlowStatus::Started).await, [flow.id]);
    let given_up = stage.created(1).await;
    stage.push(&given_up, &FlowInput::Cancel { grace_secs: 0 }).await;
    remove(&stage, &given_up).await;
    for status in FlowStatus::ALL {
        let want = if status == FlowStatus::Started { vec![flow.id] } else { Vec::new() };
        assert_eq!(listed(&stage, status).await, want, "{status}");
    }
}

async fn flows_of_an_earlier_version_are_listed(mut stage: Stage<impl Redis>) {
    let created = stage.created(1).await;
    let mut ended = stage.started(1).await;
    end(&stage, &mut ended).await;
    let started = stage.started(1).await;
    let keys = stage.keys();
    for status in FlowStatus::ALL {
        stage.command(Cmd::new("DEL").arg(&keys.flows_of(status))).await;
    }
    stage.command(Cmd::new("HDEL").arg(&keys.ids()).arg("flows_listed")).await;
    stage.start().await;
    assert_eq!(of(&stage, FlowStatus::Finished).await, [ended.id], "before there is a list");
    stage.sweep(Timestamp::now()).await;
    for (status, flow) in
        [(FlowStatus::Created, &created), (FlowStatus::Finished, &ended), (FlowStatus::Started, &started)]
    {
        assert_eq!(listed(&stage, status).await, [flow.id], "{status}");
        assert_eq!(of(&stage, status).await, [flow.id], "{status}");
    }
    // As one of the earlier version leaves it that runs beside this one.
    stage.command(Cmd::new("HSET").arg(&keys.flow(FlowId(started.id))).arg("status").arg("error")).await;
    stage.command(Cmd::new("ZADD").arg(&keys.flows_of(FlowStatus::Cancelled)).arg(1).arg(999)).await;
    assert_eq!(of(&stage, FlowStatus::Started).await, [] as [u32; 0]);
    stage.sweep(Timestamp::now()).await;
    assert_eq!(of(&stage, FlowStatus::Error).await, [started.id]);
    assert_eq!(listed(&stage, FlowStatus::Cancelled).await, [] as [u32; 0]);
}
