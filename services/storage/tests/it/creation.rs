//! Flows that one change creates, fills and starts.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use identity::Identity;
use kv::Cmd;
use model::job::BlobRef;
use model::{ActorId, BlobHash, FlowId, FlowNode, JobId, JobSpec, OwnerId, ScriptSource};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::{Code, Status};

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Running, Stage, create, failure, json, script};

/// A flow of so many nodes, each of which but the first depends on the one before it.
pub(crate) fn whole(count: u32, job: &JobSpec) -> wire::CreateFlowRequest {
    let numbered = Running {
        id: 0,
        uid: String::new(),
        context_uid: String::new(),
        first_job: 1,
        count,
        owner: String::new(),
        epoch: 0,
        last_commit: String::new(),
        revision: 0,
    };
    let nodes = (0..count).map(|place| {
        let mut node = numbered.node(place);
        node.depends.extend((place > 0).then_some(JobId(place)));
        wire::StoredNode { job_id: place + 1, node_json: json(&node), job_json: json(job) }
    });
    let (nodes, owner) = (nodes.collect(), OwnerId::random().to_string());
    wire::CreateFlowRequest { nodes, owner, ..create(count) }
}

/// Fields of a hash, but for those that differ from flow to flow.
pub(crate) async fn kept(stage: &Stage<impl Redis>, key: &str) -> BTreeMap<String, String> {
    const OWN: [&str; 11] = [
        "id",
        "uid",
        "owner",
        "revision",
        "created_at",
        "updated_at",
        "deadline",
        "last_commit",
        "last_commit_revision",
        "first_job_id",
        "jobs",
    ];
    let mut fields = stage.hash(key).await;
    fields.retain(|name, _| !OWN.contains(&name.as_str()));
    fields.remove("flow_id");
    fields
}

async fn it_is_kept_as_one_that_was_made_in_three_steps(stage: Stage<impl Redis>) {
    let steps = stage.started(2).await;
    let made = stage.flows().create_flow(whole(2, &script("true"))).await.unwrap().into_inner();
    assert!(made.is_new);
    let record = made.flow.unwrap();
    let flow = record.flow.clone().unwrap();
    assert_eq!((flow.status(), record.epoch, made.first_job_id), (v1::FlowStatus::Started, 1, 3));
    let keys = stage.keys();
    let (one, other) = (keys.flow(FlowId(flow.id)), keys.flow(FlowId(steps.id)));
    assert_eq!(kept(&stage, &one).await, kept(&stage, &other).await);
    let fields = stage.hash(&one).await;
    assert_eq!((&*fields["jobs"], &*fields["first_job_id"]), ("[3,4]", "3"));
    assert_eq!(
        (&fields["last_commit"], &fields["last_commit_revision"]),
        (&record.last_commit, &fields["revision"])
    );
    let deadline = |fields: &BTreeMap<String, String>| {
        fields["deadline"].parse::<f64>().unwrap() - fields["created_at"].parse::<f64>().unwrap()
    };
    assert!((deadline(&fields) - 60.0).abs() < 0.001, "{fields:?}");
    let job = |id| keys.job(ActorId(EXECUTOR), JobId(id));
    assert_eq!(kept(&stage, &job(3)).await, kept(&stage, &job(1)).await);
    let nodes = stage.hash(&keys.flow_nodes(FlowId(flow.id))).await;
    let node: FlowNode = serde_json::from_str(&nodes["4"]).unwrap();
    assert_eq!((node.job_id, node.depends), (JobId(4), vec![JobId(3)]));
    let of_active = Cmd::new("SISMEMBER").arg(&keys.flows_active()).arg(&format!("{}-{}", flow.id, flow.uid));
    assert_eq!(stage.command(of_active).await.int(), Ok(1));
    assert_eq!((stage.counted("flows_open").await, stage.counted("jobs_open").await), (2, 4));

    // It is driven from there on.
    let mut running = steps.made(record, 3);
    let step = running.step();
    stage.apply(&mut running, step).await;
}

async fn the_creation_and_the_start_of_a_flow_are_separate_events(stage: Stage<impl Redis>) {
    let made = stage.flows().create_flow(whole(1, &script("true"))).await.unwrap().into_inner();
    let flow = made.flow.unwrap().flow.unwrap();
    let (id, revision) = (flow.id, flow.revision);
    let entries = stage.command(Cmd::new("XRANGE").arg(&stage.keys().events()).arg("-").arg("+")).await;
    let told: Vec<(String, String)> = entries
        .entries()
        .unwrap()
        .into_iter()
        .map(|entry| {
            let event: serde_json::Value = serde_json::from_slice(entry.field("e").unwrap()).unwrap();
            (entry.id, event)
        })
        .filter(|(_, event)| event["flow_id"] == id)
        .map(|(position, event)| (position, event["status"].as_str().unwrap().to_owned()))
        .collect();
    let told: Vec<_> = told.iter().map(|(position, status)| (&**position, &**status)).collect();
    let (before, last) = (format!("{}-1", revision - 1), format!("{revision}-1"));
    assert_eq!(told, [(&*before, "created"), (&*last, "started")], "each with a revision of its own");
}

async fn the_same_request_has_one_flow(stage: Stage<impl Redis>) {
    let request = wire::CreateFlowRequest {
        request_id: "r".to_owned(),
        request_hash: "aa".to_owned(),
        ..whole(3, &script("true"))
    };
    let made = join_all((0..50).map(|_| {
        let (mut flows, request) = (stage.flows(), request.clone());
        async move { flows.create_flow(request).await.unwrap().into_inner() }
    }));
    let made = made.await;
    assert_eq!(made.iter().filter(|made| made.is_new).count(), 1);
    let flow = |made: &wire::CreateFlowResponse| made.flow.clone().unwrap().flow.unwrap().uid;
    assert!(made.iter().all(|one| flow(one) == flow(&made[0]) && one.first_job_id == made[0].first_job_id));
    // Ids that were not issued are issued next.
    let next = stage.flows().create_flow(whole(1, &script("true"))).await.unwrap().into_inner();
    assert_eq!(next.first_job_id, 4);
}

async fn ids_of_jobs_are_given_once_to_flows_and_drafts(stage: Stage<impl Redis>) {
    let spec = v1::JobSpec {
        script_type: v1::ScriptType::Shell.into(),
        script: Some(v1::Script { source: Some(v1::script::Source::Text("true".into())) }),
        ..Default::default()
    };
    let (mut given, mut ids) = (Vec::new(), BTreeSet::new());
    for _ in 0..10 {
        let flows = join_all((0..4).map(|_| {
            let mut flows = stage.flows();
            async move { flows.create_flow(whole(2, &script("true"))).await.unwrap().into_inner() }
        }));
        for made in flows.await {
            given.extend([made.first_job_id, made.first_job_id + 1]);
            ids.insert(made.flow.unwrap().flow.unwrap().id);
        }
        let draft =
            v1::CreateJobRequest { context_id: CONTEXT, spec: Some(spec.clone()), ..Default::default() };
        given.push(stage.jobs(EXECUTOR).create_job(draft).await.unwrap().into_inner().job.unwrap().id);
    }
    let (count, last) = (given.len(), given.iter().copied().max().unwrap());
    let given: BTreeSet<u32> = given.into_iter().collect();
    assert_eq!(given.len(), count, "nobody was given what another one has");
    assert!(last <= 10 * 11, "few are left out: {given:?}");
    assert_eq!(ids, (1..=40).collect(), "no id of a flow is left out");
}

async fn what_is_refused_leaves_nothing(stage: Stage<impl Redis>) {
    let before = stage.command(Cmd::new("DBSIZE")).await.int();
    let create = async |request| failure(stage.flows().create_flow(request).await);
    let blob = BlobRef { sha256: BlobHash::of(b"nowhere"), size: 7 };
    let missing = JobSpec { script: ScriptSource::Blob(blob), ..script("") };
    assert_eq!(create(whole(2, &missing)).await.1, "BLOB_MISSING");
    let mut misnumbered = whole(2, &script("true"));
    misnumbered.nodes.swap(0, 1);
    assert_eq!(create(misnumbered).await.0, Code::InvalidArgument);
    let mut fewer = whole(2, &script("true"));
    fewer.nodes.pop();
    assert_eq!(create(fewer).await.0, Code::InvalidArgument);
    let of_nobody = wire::CreateFlowRequest { owner: String::new(), ..whole(1, &script("true")) };
    assert_eq!(create(of_nobody).await.0, Code::InvalidArgument);
    let of_another = wire::CreateFlowRequest { caller_id: ADMIN, ..whole(1, &script("true")) };
    assert_eq!(create(of_another).await.0, Code::PermissionDenied);
    assert_eq!(stage.command(Cmd::new("DBSIZE")).await.int(), before);
    let made = stage.flows().create_flow(whole(2, &script("true"))).await.unwrap().into_inner();
    assert_eq!(made.first_job_id, 1);
}

async fn what_goes_before_all_others_is_for_admins(stage: Stage<impl Redis>) {
    let first = |mut stored: wire::StoredNode| {
        let mut node: FlowNode = serde_json::from_slice(&stored.node_json).unwrap();
        node.policy.priority = 0;
        stored.node_json = json(&node);
        stored
    };
    let refused = |status: Status| {
        let rpc::ErrorView { code, reason, message, .. } = rpc::ErrorView::from(&status);
        assert_eq!((code, reason.as_str()), (Code::PermissionDenied, "ROLE_INSUFFICIENT"), "{message}");
        let way = format!(
            "an admin of it gives the role with `mycora context update {CONTEXT} --add-admin {EXECUTOR}`"
        );
        assert!(message.contains("`priority: 0`") && message.ends_with(&way), "{message}");
    };
    let mut along = whole(2, &script("true"));
    along.nodes = along.nodes.into_iter().map(first).collect();
    let later = wire::CreateFlowRequest { goes_first: true, ..create(2) };
    for request in [along, later] {
        refused(stage.flows().create_flow(request.clone()).await.unwrap_err());
        let by_admin = wire::CreateFlowRequest { caller_id: ADMIN, on_behalf_of: ADMIN, ..request };
        stage.flows().create_flow(by_admin).await.unwrap();
    }
    let made = stage.flows().create_flow(create(1)).await.unwrap().into_inner();
    let flow = made.flow.unwrap().flow.unwrap();
    let other = stage.created(1).await;
    let running = Running { id: flow.id, uid: flow.uid, first_job: made.first_job_id, ..other };
    let mut add = running.add_nodes(&script("true"));
    add.nodes = add.nodes.into_iter().map(first).collect();
    refused(stage.flows().add_nodes(add.clone()).await.unwrap_err());
    add.on_behalf_of = ADMIN;
    stage.flows().add_nodes(add).await.unwrap();
}

/// Storage caches the context for later flows, yet a lost role takes effect at once.
async fn no_actor_submits_by_a_role_that_is_over(stage: Stage<impl Redis>) {
    let request = wire::CreateFlowRequest {
        request_id: "r".to_owned(),
        request_hash: "aa".to_owned(),
        ..whole(1, &script("true"))
    };
    let create = async |request: &wire::CreateFlowRequest| stage.flows().create_flow(request.clone()).await;
    let executors = async |ids: &[u32]| {
        let update = v1::UpdateContextRequest {
            context_id: CONTEXT,
            executors: Some(v1::ActorList { ids: ids.to_vec() }),
            ..Default::default()
        };
        stage.contexts(Identity::Actor(ActorId(ADMIN))).update_context(update).await.unwrap();
    };
    for _ in 0..2 {
        create(&whole(1, &script("true"))).await.unwrap();
        create(&request).await.unwrap();
        executors(&[]).await;
        for refused in [&request, &whole(1, &script("true"))] {
            assert_eq!(failure(create(refused).await).0, Code::NotFound, "it is a stranger");
        }
        executors(&[EXECUTOR]).await;
    }
    assert_eq!(stage.counted("flows_open").await, 3);
}

async fn more_than_one_change_takes_is_left_to_be_added(stage: Stage<impl Redis>) {
    let text = "x".repeat(model::limits::SCRIPT_INLINE_BYTES_MAX);
    let count = u32::try_from(model::limits::COMMIT_BYTES_MAX / text.len() / 2).unwrap() + 1;
    let made = stage.flows().create_flow(whole(count, &script(&text))).await.unwrap().into_inner();
    assert!(made.is_new);
    assert_eq!(made.flow.unwrap().flow.unwrap().status(), v1::FlowStatus::Created);
}

scenarios!(
    it_is_kept_as_one_that_was_made_in_three_steps,
    the_creation_and_the_start_of_a_flow_are_separate_events,
    the_same_request_has_one_flow,
    ids_of_jobs_are_given_once_to_flows_and_drafts,
    what_is_refused_leaves_nothing,
    no_actor_submits_by_a_role_that_is_over,
    more_than_one_change_takes_is_left_to_be_added,
    what_goes_before_all_others_is_for_admins,
);
