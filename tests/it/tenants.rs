//! Two tenants, one of whom takes all it can get of contexts, blobs, jobs, memory, disk, connections and calls. The other is
//! never refused, and its single flows wait neither behind the jobs of the first nor for a slot.
//!
//! What a flow takes alone and beside the other is printed. Where `MYCORA_TENANTS_SECS` says for how long, the machine is taken for a quiet one: the
//! p99 beside the other is at most three times that alone (`MYCORA_TENANTS_SECS=60 cargo test --release -p mycora-tests --test it tenants`). Everything
//! is on this machine and ends by itself.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use identity::{Identity, IssueOptions, Pki, SigningKey};
use model::ActorId;
use proto::v1;
use proto::v1::actor_service_client::ActorServiceClient;
use proto::v1::context_service_client::ContextServiceClient;
use proto::v1::flow_service_client::FlowServiceClient;
use proto::v1::job_service_client::JobServiceClient;
use proto::v1::runner_service_client::RunnerServiceClient;
use rpc::{Channel, ErrorView, TlsFiles};
use rustix::process::setpriority_process;
use testkit::{WitnessMark, wait_until, wait_until_blocking};
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::scene::Scene;
use crate::suite::{PATIENCE, get};

/// Default time for which one tenant takes all it can get.
const SECS_DEFAULT: u64 = 15;
/// Flows that are measured alone; before them uncounted warm-up flows.
const FLOWS_ALONE: usize = 500;
const FLOWS_BEFORE: usize = 20;
/// Time that no flow of one job takes, on the busiest machine: half of what one job of the greedy one keeps its slot.
const FLOW_MAX: Duration = Duration::from_secs(10);
/// Factor by which the greedy one slows the other down at most, on a quiet machine.
const SLOWER_MAX: u32 = 3;
/// How many of each kind the greedy one has under way.
const CALLERS: usize = 16;
const SUBMITTERS: usize = 4;
const PUTTERS: usize = 2;
const CREATORS: usize = 2;
const CONNECTIONS: usize = 200;
/// Jobs that each of its flows has.
const NODES: usize = 30;

/// An actor with a context and runners of its own.
#[derive(Clone)]
struct Tenant {
    url: String,
    tls: TlsFiles,
    context: u32,
}

impl Tenant {
    /// Over a connection of its own.
    fn channel(&self) -> Channel {
        Channel::remote(&self.url, &self.tls, Some("localhost")).expect("a way there")
    }

    fn flows(&self) -> FlowServiceClient<Channel> {
        FlowServiceClient::new(self.channel())
    }
}

fn files(pki: &Pki, identity: Identity) -> TlsFiles {
    let issued = pki.issue(identity, &IssueOptions::from(SystemTime::now())).expect("issued");
    TlsFiles::new(issued.ca, issued.certificate, issued.key)
}

/// Registers an actor, which creates a context and has jobs run where those of context 1 are.
async fn tenant(scene: &Scene, pki: &Pki) -> Tenant {
    let url = format!("https://127.0.0.1:{}", scene.up.port());
    let as_whom = |identity| {
        let tls = files(pki, identity);
        Channel::remote(&url, &tls, Some("localhost")).expect("a way there")
    };
    let pubkey = SigningKey::generate().verifying_key().to_string();
    let register = v1::RegisterActorRequest { pubkey, ..Default::default() };
    let mut actors = ActorServiceClient::new(as_whom(Identity::Admin));
    let id = actors.register_actor(register).await.expect("registered").into_inner().actor.expect("given").id;
    let me = Identity::Actor(ActorId(id));
    let create = v1::CreateContextRequest::default();
    let mut contexts = ContextServiceClient::new(as_whom(me));
    let context =
        contexts.create_context(create).await.expect("created").into_inner().context.expect("given").id;
    let list = v1::ListRunnersRequest { context_id: 1, ..Default::default() };
    let mut of_first = RunnerServiceClient::new(as_whom(Identity::Actor(ActorId(1))));
    let there = of_first.list_runners(list).await.expect("listed").into_inner().runners;
    for runner in there {
        let register = v1::RegisterRunnerRequest {
            context_id: context,
            address: runner.address,
            script_types: runner.script_types,
            local: runner.local,
            ..Default::default()
        };
        RunnerServiceClient::new(as_whom(me)).register_runner(register).await.expect("registered");
    }
    Tenant { url, tls: files(pki, me), context }
}

fn node(name: &str, script: &str) -> v1::NodeSpec {
    let source = Some(v1::script::Source::Text(script.to_owned()));
    let job = v1::JobSpec {
        script_type: v1::ScriptType::Shell.into(),
        script: Some(v1::Script { source }),
        ..Default::default()
    };
    v1::NodeSpec { name: name.to_owned(), job: Some(job), ..Default::default() }
}

/// Runs one flow of one job to its end, and returns how long that took.
async fn single(tenant: &Tenant, flows: &mut FlowServiceClient<Channel>) -> Result<Duration, Status> {
    let run = v1::RunJobRequest {
        context_id: tenant.context,
        node: Some(node("one", "true")),
        wait_secs: 60,
        ..Default::default()
    };
    let began = Instant::now();
    let ended = flows.run_job(run).await?.into_inner();
    let status = ended.flow.expect("a flow").status();
    assert_eq!(status, v1::FlowStatus::Finished, "{:?}", ended.node);
    Ok(began.elapsed())
}

/// Count of calls that succeeded, and of those that were refused because it would have been too much.
#[derive(Default)]
struct Tally {
    made: AtomicU64,
    refused: AtomicU64,
}

impl Tally {
    fn note<T>(&self, what: &str, result: Result<T, Status>) {
        match result {
            Ok(_) => _ = self.made.fetch_add(1, Ordering::Relaxed),
            Err(status) => {
                let expected = matches!(status.code(), Code::ResourceExhausted | Code::Unavailable);
                assert!(expected, "{what}: {status}");
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn show(&self, what: &str) {
        let (made, refused) = (self.made.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed));
        println!("{what}: {made} were taken, {refused} refused");
    }
}

/// Scripts that take memory, disk and time, each within what a machine for tests has.
const SCRIPTS: [&str; 3] = [
    "dd if=/dev/zero of=/dev/null bs=256M count=2 2>/dev/null; sleep 2",
    "head -c 100000000 /dev/zero > filled; sleep 2",
    "sleep 20",
];

/// Takes all it can get until `end`.
async fn take_everything(tenant: &Tenant, end: Instant) {
    let tallies: [(&str, Arc<Tally>); 4] =
        ["contexts", "blobs", "flows", "calls"].map(|what| (what, Arc::default()));
    let [contexts, blobs, flows, calls] = tallies.each_ref().map(|(_, tally)| Arc::clone(tally));
    let mut greed = JoinSet::new();
    for _ in 0..CREATORS {
        let (mut client, tally) = (ContextServiceClient::new(tenant.channel()), Arc::clone(&contexts));
        greed.spawn(async move {
            while Instant::now() < end {
                tally.note("a context", client.create_context(v1::CreateContextRequest::default()).await);
            }
        });
    }
    for n in 0..PUTTERS {
        let (mut client, tally, context_id) =
            (JobServiceClient::new(tenant.channel()), Arc::clone(&blobs), tenant.context);
        greed.spawn(async move {
            for round in 0_u64.. {
                if Instant::now() >= end {
                    return;
                }
                let mut data = vec![u8::try_from(n).expect("small"); 512 * 1024];
                data[..8].copy_from_slice(&round.to_le_bytes());
                let piece = v1::PutBlobRequest { context_id, data: data.into(), ..Default::default() };
                tally.note("a blob", client.put_blob(tokio_stream::iter([piece])).await);
            }
        });
    }
    for _ in 0..SUBMITTERS {
        let (mut client, tally, context_id) = (tenant.flows(), Arc::clone(&flows), tenant.context);
        greed.spawn(async move {
            while Instant::now() < end {
                let nodes = (0..NODES).map(|n| node(&format!("n{n}"), SCRIPTS[n % SCRIPTS.len()])).collect();
                let flow = v1::FlowSpec { name: "greed".to_owned(), nodes, ..Default::default() };
                let submit = v1::SubmitFlowRequest { context_id, flow: Some(flow), ..Default::default() };
                tally.note("a flow", client.submit_flow(submit).await);
            }
        });
    }
    for _ in 0..CALLERS {
        let (mut client, tally, context_id) = (tenant.flows(), Arc::clone(&calls), tenant.context);
        greed.spawn(async move {
            while Instant::now() < end {
                let list = v1::ListFlowsRequest { context_id, page_size: 1000, ..Default::default() };
                tally.note("a call", client.list_flows(list).await);
            }
        });
    }
    // They are kept open; what is made of each is of no interest.
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = tenant.flows();
        let list = v1::ListFlowsRequest { context_id: tenant.context, page_size: 1, ..Default::default() };
        let _ = tokio::time::timeout(Duration::from_secs(1), client.list_flows(list)).await;
        held.push(client);
        if Instant::now() >= end {
            break;
        }
    }
    while let Some(ended) = greed.join_next().await {
        ended.expect("only what is too much is refused");
    }
    drop(held);
    for (what, tally) in tallies {
        tally.show(what);
    }
}

/// The time that 99 of 100 do not exceed.
fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[(times.len() * 99).div_ceil(100) - 1]
}

/// Checks the limits that an operator chose, and the refusals beyond them.
async fn beyond_what_was_chosen(scene: &Scene, tenant: &Tenant) {
    let refused = |status: &Status| {
        let view = ErrorView::from(status);
        (
            view.reason.clone(),
            view.metadata.get("limit").cloned().unwrap_or_default(),
            view.retry_after.is_some(),
        )
    };
    let mut flows = tenant.flows();
    let waiting = || {
        let nodes = vec![v1::NodeSpec { prerequisites: vec!["signal:go".to_owned()], ..node("one", "true") }];
        let flow = v1::FlowSpec { name: "waits".to_owned(), nodes, ..Default::default() };
        v1::SubmitFlowRequest { context_id: tenant.context, flow: Some(flow), ..Default::default() }
    };
    let first = flows.submit_flow(waiting()).await.expect("the first").into_inner().flow.expect("given").id;
    flows.submit_flow(waiting()).await.expect("the second");
    let status = flows.submit_flow(waiting()).await.expect_err("one too many");
    let expected = ("LIMIT_EXCEEDED".to_owned(), "context_flows_open_max".to_owned(), true);
    assert_eq!(refused(&status), expected, "{status}");
    let cancel = v1::CancelFlowRequest { context_id: tenant.context, flow_id: first, ..Default::default() };
    flows.cancel_flow(cancel).await.expect("cancelled");
    let free = || async { flows.clone().submit_flow(waiting()).await.ok() };
    wait_until(free, PATIENCE, "there is room again").await;

    // Redis has 40 MiB, of which 5 are kept for what is there.
    assert!(scene.up.redis(0, &["CONFIG", "GET", "maxmemory"]).contains("41943040"));
    let mut jobs = JobServiceClient::new(tenant.channel());
    let mut put = async |n: u8| {
        let piece = |sha256: &str| v1::PutBlobRequest {
            context_id: tenant.context,
            sha256: sha256.to_owned(),
            data: vec![n; 512 * 1024].into(),
        };
        jobs.put_blob(tokio_stream::iter([piece("")])).await
    };
    let mut full = None;
    for n in 0..200 {
        if let Err(status) = put(n).await {
            full = Some(status);
            break;
        }
    }
    assert_eq!(refused(&full.expect("40 MiB are not 100")), ("STORE_FULL".to_owned(), String::new(), true));
    let delete = v1::DeleteFlowRequest { context_id: tenant.context, flow_id: first, ..Default::default() };
    flows.delete_flow(delete).await.expect("what is there can be deleted");

    // A rate of calls, whatever the connections.
    let others: Vec<_> = (0..4).map(|_| tenant.flows()).collect();
    let mut calls = JoinSet::new();
    for n in 0..400 {
        let (mut client, context_id) = (others[n % others.len()].clone(), tenant.context);
        let list = v1::ListFlowsRequest { context_id, page_size: 1, ..Default::default() };
        calls.spawn(async move { client.list_flows(list).await.map(drop) });
    }
    let answers = calls.join_all().await;
    let refusals: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    let expected = ("LIMIT_EXCEEDED".to_owned(), "actor_calls_per_sec".to_owned(), true);
    assert!(!refusals.is_empty() && refusals.len() < 400, "{} of 400 were refused", refusals.len());
    assert!(refusals.iter().all(|status| refused(status) == expected), "{refusals:?}");
}

#[test]
fn an_operator_chooses_what_an_actor_and_a_context_may_have() {
    let chosen = [
        "--limit=context_flows_open_max=2,actor_contexts_max=1",
        "--redis-memory=40",
        "--actor-calls-per-sec=20",
        "--actor-calls-burst=300",
    ];
    let scene = Scene::new(&chosen);
    let info = get(scene.up.dir(), scene.up.port() + 100, "/info");
    for shown in [
        "\"context_flows_open_max\": 2,",
        "\"actor_contexts_max\": 1,",
        "\"actor_calls_per_sec\": 20,",
        "\"redis_memory_bytes\": 41943040,",
    ] {
        assert!(info.contains(shown), "{shown} is not in {info}");
    }
    let pki = Pki::open(&scene.path().join("data/pki")).expect("`up` makes one");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let tenant = tenant(&scene, &pki).await;
        let mut contexts = ContextServiceClient::new(tenant.channel());
        let status =
            contexts.create_context(v1::CreateContextRequest::default()).await.expect_err("a second");
        assert_eq!(ErrorView::from(&status).metadata["limit"], "actor_contexts_max");
        beyond_what_was_chosen(&scene, &tenant).await;
    });
    scene.close();
}

#[test]
fn one_who_takes_all_it_can_get_neither_refuses_the_other_nor_holds_it_up() {
    let secs = std::env::var("MYCORA_TENANTS_SECS").ok().and_then(|secs| secs.parse().ok());
    let scene = Scene::new(&[]);
    let pki = Pki::open(&scene.path().join("data/pki")).expect("`up` makes one");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut alone, mut beside) = runtime.block_on(async {
        let modest = tenant(&scene, &pki).await;
        let mut flows = modest.flows();
        let mut alone = Vec::new();
        for _ in 0..FLOWS_BEFORE + FLOWS_ALONE {
            alone.push(single(&modest, &mut flows).await.expect("nobody else is there"));
        }
        let alone = alone.split_off(FLOWS_BEFORE);
        let greedy = tenant(&scene, &pki).await;
        let end = Instant::now() + Duration::from_secs(secs.unwrap_or(SECS_DEFAULT));
        // On a thread of its own, and after all others: how long its own work takes is nothing that the other waits for.
        let greed = std::thread::spawn(move || {
            setpriority_process(None, 19).expect("anybody may be nicer");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(take_everything(&greedy, end));
        });
        let mut beside = Vec::new();
        while Instant::now() < end {
            beside.push(single(&modest, &mut flows).await.expect("it is never refused"));
        }
        greed.join().expect("the greedy one was refused nothing but what is too much");
        (alone, beside)
    });
    let (alone_p99, beside_p99) = (p99(&mut alone), p99(&mut beside));
    println!(
        "p99 of {} alone: {alone_p99:?}; of {} beside the other: {beside_p99:?}",
        alone.len(),
        beside.len()
    );
    assert!(beside.iter().all(|time| *time < FLOW_MAX), "{beside:?}");
    assert!(
        secs.is_none() || beside_p99 <= alone_p99 * SLOWER_MAX,
        "{beside_p99:?} instead of {alone_p99:?}"
    );
    scene.close();
}

/// Submits a flow of shell jobs and gives nothing back: what becomes of it is seen otherwise.
async fn submit(tenant: &Tenant, nodes: Vec<v1::NodeSpec>) {
    let flow = v1::FlowSpec { name: "waits".to_owned(), nodes, ..Default::default() };
    let request =
        v1::SubmitFlowRequest { context_id: tenant.context, flow: Some(flow), ..Default::default() };
    tenant.flows().submit_flow(request).await.expect("submitted");
}

/// Sixty jobs of one wait for the only slot, and one of the other: it is next.
#[test]
fn one_job_does_not_wait_behind_all_of_another_tenant() {
    const WAITING: usize = 60;
    let scene = Scene::new(&["--slots", "1"]);
    let pki = Pki::open(&scene.path().join("data/pki")).expect("`up` makes one");
    let (witness, gate) = (scene.witness(), scene.path().join("gate"));
    rustix::fs::mknodat(rustix::fs::CWD, &gate, rustix::fs::FileType::Fifo, rustix::fs::Mode::empty(), 0)
        .expect("a pipe with a name");
    std::fs::write(witness.path(), "").expect("an empty file");
    for path in [gate.as_path(), witness.path()] {
        // Contexts have users of their own.
        std::fs::set_permissions(path, Permissions::from_mode(0o666)).expect("it is ours");
    }
    let opened = scene.path().join("opened");
    let body = format!("[ -e '{}' ] || read go < '{}'", opened.display(), gate.display());
    let job = |name: &str| node(name, &witness.shell(name, &body));
    let waiting = |count: usize| {
        let look = || {
            let depth = scene.up.redis(4095, &["ZCARD", "hero:unclaimed:hero:q:work:type:shell"]);
            (depth.trim() == count.to_string()).then_some(())
        };
        wait_until_blocking(look, PATIENCE, format!("{count} jobs wait"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (greedy, modest) =
        runtime.block_on(async { (tenant(&scene, &pki).await, tenant(&scene, &pki).await) });
    let all = (0..=WAITING).map(|number| job(&format!("greedy-{number}"))).collect();
    runtime.block_on(submit(&greedy, all));
    waiting(WAITING);
    runtime.block_on(submit(&modest, vec![job("modest")]));
    waiting(WAITING + 1);
    let begun = || -> Vec<String> {
        let starts = witness.lines().into_iter().filter(|(mark, ..)| *mark == WitnessMark::Start);
        starts.map(|(_, name, _)| name).collect()
    };
    let has_begun = |name| begun().last().is_some_and(|last| last == name).then_some(());
    wait_until_blocking(|| has_begun("greedy-0"), PATIENCE, "the first one has begun");
    std::fs::write(&gate, "go\n").expect("somebody reads");
    wait_until_blocking(|| (begun().len() == 2).then_some(()), PATIENCE, "the next one has begun");
    assert_eq!(begun(), ["greedy-0", "modest"]);
    std::fs::write(&opened, "").expect("whoever comes finds it");
    std::fs::write(&gate, "go\n").expect("somebody reads");
    // Its connections end with it: who stops waits for them.
    drop(runtime);
    scene.close();
}
