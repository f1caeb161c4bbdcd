//! Imports: whole files alone, of this context alone, and where there is room for it.

use archive::{ArchiveFrame, ArchiveManifest, ArchiveRecord, ArchiveValue};
use identity::{Identity, SigningKey};
use keys::Layout;
use kv::Cmd;
use model::{FlowId, Timestamp};
use proto::v1;
use storage::Config;
use testkit::{PATIENCE, RedisServer, wait_until};
use tonic::Code;

use super::{Importing, LAYOUTS, everything, exported, file_of, fill, frames, imported, make_room};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Stage, failure};

type Fields = std::collections::BTreeMap<String, String>;

fn resume() -> v1::ImportStart {
    v1::ImportStart::default()
}

/// Leaves out what differs between a context and its import by nature: the change counter, the last event, audit entries, and what waits for
/// routers, each of which is compared on its own.
fn comparable(mut all: Fields) -> Fields {
    for key in ["ids", "events", "audit", "msg_out", "msg_out_coordinator", &format!("context:{CONTEXT}")] {
        all.remove(key);
    }
    all
}

#[tokio::test]
async fn a_context_comes_back_as_it_was_in_every_layout() {
    for (from, to) in LAYOUTS {
        let (here, there) = (Stage::new(from).await, Stage::new(to).await);
        let running = fill(&here).await;
        // A router holds all messages.
        let _router = here.router("r").await;
        let taken = || async {
            let waiting = here.command(Cmd::new("LLEN").arg(&here.keys().msg_out())).await.uint().unwrap();
            (waiting == 0).then_some(())
        };
        wait_until(taken, PATIENCE, "the router holds the messages").await;
        let file = exported(&here).await;
        let before = everything(&here).await;
        make_room(&there).await;
        let answer = imported(&there, resume(), &file).await.unwrap();
        let context = answer.context.unwrap();
        assert_eq!((context.id, &context.uid), (CONTEXT, &here.context_uid));
        assert_eq!(context.admins, [ADMIN]);
        let after = everything(&there).await;
        assert_eq!(comparable(before.clone()), comparable(after.clone()), "{from} to {to}");
        let held = |text: &str| -> Vec<String> {
            let messages = text.split(['\n', ' ', ',', '[', ']']).filter(|word| word.starts_with("message:"));
            messages.map(str::to_owned).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
        };
        let waiting = held(&after["msg_out"]);
        assert!(waiting.len() > 1, "{waiting:?}");
        assert_eq!(waiting, held(&before["msg_out_coordinator"]), "they wait for a router again");
        assert!(!after.contains_key("msg_out_coordinator"));
        // One change has put the context in use.
        assert_eq!(there.revision().await, here.revision().await + 1);
        assert_eq!(there.counted("jobs_open").await, here.counted("jobs_open").await);
        assert_eq!(there.counted("blob_bytes").await, here.counted("blob_bytes").await);

        // A scheduler there takes the flow over, and ids go on.
        let request = proto::internal::v1::TakeFlowRequest {
            context_id: CONTEXT,
            flow_id: running.id,
            owner: model::OwnerId::random().to_string(),
        };
        there.flows().take_flow(request).await.unwrap();
        assert!(there.created(1).await.id > running.id);
    }
}

#[tokio::test]
async fn keys_that_expire_go_on_expiring() {
    let (here, there) = (Stage::new(Layout::Database).await, Stage::new(Layout::HashTag).await);
    fill(&here).await;
    let file = exported(&here).await;
    make_room(&there).await;
    imported(&there, resume(), &file).await.unwrap();
    let key = there.keys().request(model::ActorId(EXECUTOR), "kept");
    let left = there.command(Cmd::new("TTL").arg(&key)).await.int().unwrap();
    assert!((80_000..=86_400).contains(&left), "{left}");
}

#[tokio::test]
async fn files_that_are_cut_off_or_altered_are_refused_by_name() {
    let (here, there) = (Stage::new(Layout::Database).await, Stage::new(Layout::Database).await);
    fill(&here).await;
    let file = exported(&here).await;
    let ends = frames(&file).1;
    make_room(&there).await;
    for (number, end) in (1..).zip(&ends[..ends.len() - 1]) {
        let refused = imported(&there, resume(), &file[..*end]).await.unwrap_err();
        assert_eq!(refused.message(), format!("the export is cut off after frame {number}"));
        assert_eq!(failure::<()>(Err(refused)), (Code::InvalidArgument, "ARCHIVE_UNUSABLE".to_owned()));
        give_up(&there).await;
    }
    for (number, end) in (1..).zip(&ends) {
        let mut altered = file.clone();
        altered[end - 1] ^= 1;
        let refused = imported(&there, resume(), &altered).await.unwrap_err();
        assert_eq!(refused.message(), format!("frame {number} of the export is altered"));
        if number > 1 {
            give_up(&there).await;
        }
    }
    // Nothing of all that is seen.
    let get = v1::GetContextRequest { id: CONTEXT };
    assert_eq!(failure(there.contexts(Identity::Admin).get_context(get).await).0, Code::NotFound);
    imported(&there, resume(), &file).await.unwrap();
}

async fn give_up(stage: &Stage) {
    let start = v1::ImportStart { abandon_context_id: CONTEXT, ..Default::default() };
    let import = Importing::begin(stage, start, &[]).await.unwrap();
    assert_eq!(failure(import.end().await).0, Code::Unavailable, "no answer, and no error");
    let left = Cmd::new("KEYS").arg(&format!("{}*", stage.keys().prefix()));
    assert_eq!(stage.command(left).await.texts().unwrap(), [""; 0]);
}

#[tokio::test]
async fn frames_with_foreign_records_are_refused() {
    let (here, there) = (Stage::new(Layout::HashTag).await, Stage::new(Layout::HashTag).await);
    let file = exported(&here).await;
    let frames = frames(&file).0;
    let manifest = frames[0].content.clone();
    make_room(&there).await;
    let (global, zero) = there.global();
    let before = zero.cmd(Cmd::new("HGETALL").arg(&global.coordinator())).await.unwrap();
    let hash = |name: &str, value: &str| {
        ArchiveValue::Hash(vec![(name.as_bytes().to_vec(), value.as_bytes().to_vec())])
    };
    for (key, value) in [
        ("{0}:coordinator", hash("id", "mine")),
        ("coordinator", hash("id", "mine")),
        ("actor:1", hash("pubkey", "mine")),
        ("{2}:context:2", hash("admins", "[4]")),
        ("context:2", hash("admins", "[4]")),
        ("flow:1", ArchiveValue::Text(b"x".to_vec())),
        ("flow:1", hash("context_id", "2")),
        ("drops", ArchiveValue::Set(vec![b"1".to_vec()])),
        ("flow:1:messages", ArchiveValue::Set(vec![b"{2}:message:1:1".to_vec()])),
    ] {
        let record = ArchiveRecord { key: key.to_owned(), continued: false, expires_in_millis: None, value };
        let records = ArchiveFrame::Records { records: vec![record], position: String::new() };
        let hostile = file_of([manifest.clone(), records, ArchiveFrame::End { frames: 2 }]);
        let refused = imported(&there, resume(), &hostile).await.unwrap_err();
        assert!(
            refused.message().starts_with("frame 2 of the export cannot be used"),
            "{}",
            refused.message()
        );
        assert_eq!(failure::<()>(Err(refused)), (Code::InvalidArgument, "ARCHIVE_UNUSABLE".to_owned()));
        give_up(&there).await;
    }
    assert_eq!(zero.cmd(Cmd::new("HGETALL").arg(&global.coordinator())).await.unwrap(), before);

    // A length that nobody has memory for, and a context without a record.
    let long = [archive::HEADER, &u32::MAX.to_be_bytes(), &[0; 32]].concat();
    let refused = imported(&there, resume(), &long).await.unwrap_err();
    assert!(refused.message().contains("at most"), "{}", refused.message());
    let empty = file_of([manifest, ArchiveFrame::End { frames: 1 }]);
    let refused = imported(&there, resume(), &empty).await.unwrap_err();
    assert!(refused.message().contains("no record of its context"), "{}", refused.message());
}

#[tokio::test]
async fn an_import_that_broke_off_continues() {
    let (here, there) = (Stage::new(Layout::Database).await, Stage::new(Layout::HashTag).await);
    fill(&here).await;
    let file = exported(&here).await;
    let ends = frames(&file).1;
    make_room(&there).await;
    let mut taken = 0;
    for stop in [2, 3, 4] {
        let mut import = Importing::begin(&there, resume(), &file[..ends[0]]).await.unwrap();
        let first = import.answer().await.unwrap();
        assert!(first.frames >= taken.max(1), "{first:?}");
        let from = ends[usize::try_from(first.frames).unwrap() - 1];
        import.send(&file[from..ends[stop - 1] + 5]).await;
        while taken < stop as u64 {
            taken = import.answer().await.unwrap().frames;
        }
        // A context that is created meanwhile gets another number.
        let other = v1::CreateContextRequest { id: CONTEXT, admins: vec![ADMIN], ..Default::default() };
        let refused = failure(there.contexts(Identity::Admin).create_context(other).await);
        assert_eq!(refused, (Code::AlreadyExists, "ALREADY_EXISTS".to_owned()));
    }
    // Another export of the same context is another file.
    let another = exported(&here).await;
    let refused = failure(imported(&there, resume(), &another).await);
    assert_eq!(refused, (Code::FailedPrecondition, "IMPORT_UNDER_WAY".to_owned()));
    imported(&there, resume(), &file).await.unwrap();
    assert_eq!(comparable(everything(&here).await), comparable(everything(&there).await));
    // A complete import cannot be given up.
    let start = v1::ImportStart { abandon_context_id: CONTEXT, ..Default::default() };
    let import = Importing::begin(&there, start, &[]).await.unwrap();
    assert_eq!(failure(import.end().await).0, Code::NotFound);
}

#[tokio::test]
async fn numbers_and_uids_that_are_taken_are_refused() {
    let (here, there) = (Stage::new(Layout::Database).await, Stage::new(Layout::Database).await);
    let file = exported(&here).await;
    let taken = (Code::AlreadyExists, "CONTEXT_EXISTS".to_owned());
    assert_eq!(failure(imported(&here, resume(), &file).await), taken);
    assert_eq!(failure(imported(&there, resume(), &file).await), taken, "another context");
    // The uid under another number.
    let ArchiveFrame::Manifest(manifest) = frames(&file).0[0].content.clone() else { panic!("no manifest") };
    let moved = ArchiveManifest { context: model::ContextId(5), ..manifest };
    let moved = file_of([ArchiveFrame::Manifest(moved), ArchiveFrame::End { frames: 1 }]);
    let refused = imported(&here, resume(), &moved).await.unwrap_err();
    assert!(refused.message().contains("has the uid"), "{}", refused.message());
    assert_eq!(failure::<()>(Err(refused)), taken);
}

#[tokio::test]
async fn an_actor_with_another_key_is_refused_unless_it_is_accepted() {
    let (here, there) = (Stage::new(Layout::Database).await, Stage::new(Layout::Database).await);
    let file = exported(&here).await;
    make_room(&there).await;
    let rotate = v1::RotateActorKeyRequest {
        id: ADMIN,
        pubkey: SigningKey::generate().verifying_key().to_string(),
        ..Default::default()
    };
    there.actors(Identity::Admin).rotate_actor_key(rotate).await.unwrap();
    imported(&there, resume(), &file).await.unwrap();
    make_room(&there).await;

    // As if the number were somebody else's.
    let (global, zero) = there.global();
    let key = SigningKey::generate().verifying_key().to_string();
    let record = global.actor(model::ActorId(EXECUTOR));
    let other = Cmd::new("HSET").arg(&record).arg("pubkey").arg(&key).arg("keys").arg("[]");
    zero.cmd(other).await.unwrap();
    let refused = imported(&there, resume(), &file).await.unwrap_err();
    assert!(refused.message().contains("--accept-actor 2"), "{}", refused.message());
    assert_eq!(failure::<()>(Err(refused)), (Code::FailedPrecondition, "ACTOR_CONFLICT".to_owned()));
    let accepting = v1::ImportStart { accepted_actors: vec![EXECUTOR], ..Default::default() };
    imported(&there, accepting, &file).await.unwrap();
}

#[tokio::test]
async fn missing_actors_are_registered() {
    let here = Stage::new(Layout::Database).await;
    let file = exported(&here).await;
    let there = Stage::with(RedisServer::start(), Config::default()).await;
    make_room(&there).await;
    // As on an empty coordinator.
    let (global, zero) = there.global();
    for id in [ADMIN, EXECUTOR] {
        zero.cmd(Cmd::new("DEL").arg(&global.actor(model::ActorId(id)))).await.unwrap();
    }
    zero.cmd(Cmd::new("DEL").arg(&global.actor_keys())).await.unwrap();
    imported(&there, resume(), &file).await.unwrap();
    for id in [ADMIN, EXECUTOR] {
        let get = v1::GetActorRequest { id };
        let actor = there.actors(Identity::Admin).get_actor(get).await.unwrap().into_inner().actor.unwrap();
        assert_eq!(actor.pubkey, crate::stage::key_of(id));
    }
}

#[tokio::test]
async fn flows_that_run_are_cancelled_where_that_is_asked() {
    let (here, there) = (Stage::new(Layout::Database).await, Stage::new(Layout::HashTag).await);
    let running = fill(&here).await;
    let file = exported(&here).await;
    make_room(&there).await;
    let start = v1::ImportStart { running: v1::ImportedFlows::Cancel.into(), ..Default::default() };
    let answer = imported(&there, start, &file).await.unwrap();
    assert_eq!(answer.cancelled_flows, 1);
    let flow = there.hash(&there.keys().flow(FlowId(running.id))).await;
    assert!(flow["cancel_requested_time"].parse::<Timestamp>().is_ok(), "{flow:?}");
    let inputs = Cmd::new("LRANGE").arg(&there.keys().flow_inputs(FlowId(running.id))).arg(0).arg(-1);
    let inputs = there.command(inputs).await.texts().unwrap();
    assert!(inputs.iter().any(|input| input.contains("cancel")), "{inputs:?}");
}
