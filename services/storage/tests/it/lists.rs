//! Listings: filters, pages, and where a message stands.

use keys::Layout;
use kv::Cmd;
use model::{FlowId, FlowNode, NodeState};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Code;

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, create, failure, json};

fn all(actor: u32) -> wire::ReadFlowsRequest {
    wire::ReadFlowsRequest { context_id: CONTEXT, on_behalf_of: actor, page_size: 2, ..Default::default() }
}

async fn ids(stage: &Stage, mut request: wire::ReadFlowsRequest) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        let page = stage.flows().read_flows(request.clone()).await.unwrap().into_inner();
        ids.extend(page.flows.iter().map(|flow| flow.id));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return ids;
        }
    }
}

#[tokio::test]
async fn flows_are_listed_by_whose_how_called_and_when() {
    for layout in [Layout::Database, Layout::HashTag] {
        let stage = Stage::new(layout).await;
        let create = |caller: u32, name: &str| {
            let mut request = create(1);
            (request.caller_id, request.on_behalf_of) = (caller, ADMIN);
            request.flow.as_mut().unwrap().name = name.to_owned();
            request
        };
        for (caller, name) in [
            (ADMIN, "night-1"),
            (EXECUTOR, "night-2"),
            (EXECUTOR, "day-1"),
            (ADMIN, "day-2"),
            (ADMIN, "night-3"),
        ] {
            stage.flows().create_flow(create(caller, name)).await.unwrap();
        }
        for (n, secs) in (1..).zip([100, 200, 300, 400, 500]) {
            let key = stage.keys().flow(FlowId(n));
            stage.command(Cmd::new("HSET").arg(&key).arg("created_at").arg(&format!("{secs}.000"))).await;
        }
        assert_eq!(ids(&stage, all(READER)).await, [5, 4, 3, 2, 1], "newest first");
        let of = wire::ReadFlowsRequest { caller_id: ADMIN, ..all(READER) };
        assert_eq!(ids(&stage, of.clone()).await, [5, 4, 1]);
        let night = wire::ReadFlowsRequest { name_prefix: "night".to_owned(), ..of.clone() };
        assert_eq!(ids(&stage, night.clone()).await, [5, 1]);
        let between = wire::ReadFlowsRequest {
            created_from_millis: 200_000,
            created_before_millis: 400_000,
            ..all(READER)
        };
        assert_eq!(ids(&stage, between.clone()).await, [3, 2]);
        let created = wire::ReadFlowsRequest { status: v1::FlowStatus::Created.into(), ..between };
        assert_eq!(ids(&stage, created).await, [3, 2]);

        let first = stage.flows().read_flows(of.clone()).await.unwrap().into_inner();
        for other in [night, all(READER), wire::ReadFlowsRequest { on_behalf_of: ADMIN, ..of }] {
            let stolen = wire::ReadFlowsRequest { page_token: first.next_page_token.clone(), ..other };
            assert_eq!(failure(stage.flows().read_flows(stolen).await).0, Code::InvalidArgument);
        }
    }
}

#[tokio::test]
async fn nodes_are_listed_by_state_and_by_number() {
    let stage = Stage::new(Layout::Database).await;
    let mut flow = stage.started(500).await;
    let node = |flow: &crate::stage::Running, place: u32| {
        let mut node = flow.node(place);
        node.state = NodeState::Completed;
        let (job_id, node_json) = (node.job_id.0, json(&node));
        wire::NodeCommit { job_id, node_json, job_status: "finished".to_owned(), ..Default::default() }
    };
    let nodes = (0..500).filter(|place| place % 7 == 0).map(|place| node(&flow, place)).collect();
    let step = wire::CommitRequest { nodes, ..flow.step() };
    stage.apply(&mut flow, step).await;
    let request = wire::ReadNodesRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: READER,
        page_size: 30,
        states: vec![v1::NodeState::Completed.into(), v1::NodeState::Running.into()],
        ..Default::default()
    };
    let places = |page: &wire::ReadNodesResponse| {
        let place =
            |json: &bytes::Bytes| serde_json::from_slice::<FlowNode>(json).unwrap().job_id.0 - flow.first_job;
        page.nodes.iter().map(place).collect::<Vec<_>>()
    };
    let (mut next, mut seen, mut pages) = (request.clone(), Vec::new(), 0);
    loop {
        let page = stage.flows().read_nodes(next.clone()).await.unwrap().into_inner();
        seen.extend(places(&page));
        pages += 1;
        next.page_token = page.next_page_token;
        if next.page_token.is_empty() {
            break;
        }
    }
    assert_eq!((pages, seen), (3, (0..500).filter(|place| place % 7 == 0).collect()));

    // Those that are named, whatever the size of the page.
    let job_ids: Vec<u32> = [499, 0, 5, 7, 2].map(|place| flow.first_job + place).into();
    let named =
        wire::ReadNodesRequest { page_size: 2, states: Vec::new(), job_ids: job_ids.clone(), ..request };
    let page = stage.flows().read_nodes(named.clone()).await.unwrap().into_inner();
    assert_eq!((places(&page), page.next_page_token.as_str()), (vec![0, 2, 5, 7, 499], ""));
    assert_eq!(
        (&page.context_uid, &page.flow_uid),
        (&stage.context_uid, &flow.uid),
        "its attempts are named so"
    );
    let both = wire::ReadNodesRequest { states: vec![v1::NodeState::Completed.into()], ..named.clone() };
    assert_eq!(places(&stage.flows().read_nodes(both).await.unwrap().into_inner()), [0, 7]);
    let foreign = wire::ReadNodesRequest { job_ids: vec![flow.first_job + 500, 0], ..named.clone() };
    assert_eq!(places(&stage.flows().read_nodes(foreign).await.unwrap().into_inner()), [0_u32; 0]);
    let many = wire::ReadNodesRequest { job_ids: vec![1; 1001], ..named };
    assert_eq!(failure(stage.flows().read_nodes(many).await).0, Code::InvalidArgument);
}

#[tokio::test]
async fn who_is_to_watch_is_given_the_flow_and_where_to_begin() {
    let stage = Stage::new(Layout::Database).await;
    let flow = stage.started(3).await;
    let watch = wire::WatchEventsRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: READER,
        first_nodes: 2,
        ..Default::default()
    };
    let mut events = stage.flows().watch_events(watch.clone()).await.unwrap().into_inner();
    let first = events.message().await.unwrap().unwrap();
    let read = first.flow.unwrap().flow.unwrap();
    assert_eq!((read.id, &read.uid, read.revision), (flow.id, &flow.uid, flow.revision));
    let nodes = first.first_nodes.unwrap();
    assert_eq!((nodes.nodes.len(), first.position.starts_with(&format!("{}.", flow.revision))), (2, true));
    let that_was_all = events.message().await.unwrap().unwrap();
    assert_eq!((&that_was_all.position, that_was_all.flow), (&first.position, None));
    // The next page is asked for by its token.
    let request = wire::ReadNodesRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: READER,
        page_size: 2,
        page_token: nodes.next_page_token,
        ..Default::default()
    };
    assert_eq!(stage.flows().read_nodes(request).await.unwrap().into_inner().nodes.len(), 1);

    for wrong in [
        wire::WatchEventsRequest { first_nodes: 1001, ..watch.clone() },
        wire::WatchEventsRequest { flow_id: 0, ..watch.clone() },
        wire::WatchEventsRequest { position: that_was_all.position.clone(), ..watch.clone() },
    ] {
        assert_eq!(failure(stage.flows().watch_events(wrong).await).0, Code::InvalidArgument);
    }
    let stranger = wire::WatchEventsRequest { on_behalf_of: STRANGER, ..watch };
    assert_eq!(failure(stage.flows().watch_events(stranger).await).0, Code::NotFound);
}

#[tokio::test]
async fn pages_end_at_their_size_in_bytes() {
    let stage = Stage::new(Layout::Database).await;
    let mut flow = stage.started(12).await;
    let large = |place: u32| {
        let mut node = flow.node(place);
        node.result.insert("a".to_owned(), "x".repeat(200_000));
        let (job_id, node_json) = (node.job_id.0, json(&node));
        wire::NodeCommit { job_id, node_json, job_status: "started".to_owned(), ..Default::default() }
    };
    let step = wire::CommitRequest { nodes: (0..12).map(large).collect(), ..flow.step() };
    stage.apply(&mut flow, step).await;
    let mut request = wire::ReadNodesRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        on_behalf_of: READER,
        page_size: 1000,
        ..Default::default()
    };
    let mut sizes = Vec::new();
    loop {
        let page = stage.flows().read_nodes(request.clone()).await.unwrap().into_inner();
        sizes.push(page.nodes.len());
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(sizes, [5, 5, 2]);
    request.job_ids = (flow.first_job..flow.first_job + 12).collect();
    let page = stage.flows().read_nodes(request.clone()).await.unwrap().into_inner();
    assert_eq!((page.nodes.len(), page.next_page_token.is_empty()), (5, false));
}

#[tokio::test]
async fn a_message_is_read_with_its_status_and_transport_status() {
    let stage = Stage::new(Layout::HashTag).await;
    let mut flow = stage.started(1).await;
    let step = wire::CommitRequest { messages: vec![flow.message(7)], ..flow.step() };
    stage.apply(&mut flow, step).await;
    let read = |key: &str, actor: u32| wire::ReadMessageRequest {
        context_id: CONTEXT,
        message_key: key.to_owned(),
        on_behalf_of: actor,
    };
    let message = stage.flows().read_message(read("message:2:7", READER)).await.unwrap().into_inner();
    let expected = wire::ReadMessageResponse {
        status: "dispatched".to_owned(),
        transport_status: "queued".to_owned(),
        created_millis: flow.message(7).created_millis,
        ..Default::default()
    };
    assert_eq!(message, expected);
    for (key, actor, code) in [
        ("message:2:8", READER, Code::NotFound),
        ("message:2:7", STRANGER, Code::NotFound),
        ("flow:2", READER, Code::InvalidArgument),
    ] {
        assert_eq!(failure(stage.flows().read_message(read(key, actor)).await).0, code);
    }
}

#[tokio::test]
async fn messages_of_a_flow_name_its_attempts() {
    let stage = Stage::new(Layout::HashTag).await;
    let mut flow = stage.started(2).await;
    let nodes =
        ["a-1-1", "a-2-1"].map(|key| format!(r#"{{"job_key":"{key}","script":"{}"}}"#, "x".repeat(999)));
    let message = wire::OutgoingMessage { nodes: nodes.map(bytes::Bytes::from).into(), ..flow.message(1) };
    let send = wire::CommitRequest { messages: vec![message], ..flow.step() };
    stage.apply(&mut flow, send).await;
    let list = v1::ListMessagesRequest { context_id: CONTEXT, flow_id: flow.id, ..Default::default() };
    let request = wire::FindMessagesRequest { list: Some(list), on_behalf_of: READER };
    let page = stage.message_box().find_messages(request).await.unwrap().into_inner().page.unwrap();
    assert_eq!(page.messages[0].job_keys, ["a-1-1", "a-2-1"]);
}
