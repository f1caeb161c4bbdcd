//! Exports: what a frozen context does, and how an export is continued.

use archive::{ArchiveFrame, ArchiveReader, ArchiveValue};
use identity::Identity;
use kv::Cmd;
use model::{ActorId, Timestamp};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Code;

use super::{exported, file_of, fill, frames, opened, request};
use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, create, failure};

/// Sets when the freeze of the context ends.
async fn freeze_until(stage: &Stage<impl Redis>, until: Timestamp) {
    let set = Cmd::new("HSET").arg(&stage.keys().context()).arg("frozen_until").arg(&until.to_string());
    stage.command(set).await;
}

async fn a_frozen_context_is_read_and_takes_no_changes(stage: Stage<impl Redis>) {
    let mut running = fill(&stage).await;
    // Pieces that nobody reads: the export is under way.
    let mut pieces = opened(&stage, request()).await.unwrap();
    pieces.message().await.unwrap().unwrap();
    let frozen = (Code::Unavailable, "CONTEXT_FROZEN".to_owned());
    assert_eq!(failure(stage.flows().create_flow(create(1)).await), frozen);
    let settings = v1::UpdateContextRequest { context_id: CONTEXT, ..Default::default() };
    assert_eq!(failure(stage.contexts(Identity::Admin).update_context(settings).await), frozen);
    assert_eq!(failure(opened(&stage, request()).await), frozen, "another export is under way");
    let end = running.end();
    assert_eq!(stage.commit(end.clone()).await.refusal(), wire::CommitRefusal::Frozen);
    let read =
        wire::ReadFlowRequest { context_id: CONTEXT, flow_id: running.id, on_behalf_of: READER, purpose: 0 };
    stage.flows().read_flow(read).await.unwrap();
    stage.sweep(Timestamp::now()).await;

    // The freeze ends by itself.
    freeze_until(&stage, Timestamp::default()).await;
    stage.apply(&mut running, end).await;
    stage.flows().create_flow(create(1)).await.unwrap();
    drop(pieces);
}

async fn a_complete_export_ends_the_freeze(stage: Stage<impl Redis>) {
    fill(&stage).await;
    let file = exported(&stage).await;
    assert!(frames(&file).0.len() > 3, "several frames of records");
    let thawed = || async {
        let record = stage.hash(&stage.keys().context()).await;
        (!record.contains_key("frozen_until") && !record.contains_key("snapshot")).then_some(())
    };
    testkit::wait_until(thawed, testkit::PATIENCE, "the freeze is over").await;
    stage.flows().create_flow(create(1)).await.unwrap();
}

async fn admins_export(stage: Stage<impl Redis>) {
    let export = |actor: u32| {
        let mut contexts = stage.contexts(Identity::Actor(ActorId(actor)));
        async move { contexts.export_context(request()).await }
    };
    for (actor, code) in
        [(EXECUTOR, Code::PermissionDenied), (READER, Code::PermissionDenied), (STRANGER, Code::NotFound)]
    {
        assert_eq!(failure(export(actor).await).0, code);
    }
    let mut pieces = export(ADMIN).await.unwrap().into_inner();
    while pieces.message().await.unwrap().is_some() {}
    let entries = v1::ListAuditEntriesRequest { context_id: CONTEXT, ..Default::default() };
    let entries = stage.contexts(Identity::Admin).list_audit_entries(entries).await.unwrap().into_inner();
    assert_eq!(entries.entries[0].action, "context.export");
}

async fn an_export_that_broke_off_continues(stage: Stage<impl Redis>) {
    fill(&stage).await;
    let (mut contents, mut breaks) = (Vec::new(), 0);
    let mut reader = ArchiveReader::new();
    let (mut resume, mut snapshot): (Option<v1::ExportPosition>, String) = (None, String::new());
    while !reader.has_ended() {
        let mut pieces = opened(&stage, v1::ExportContextRequest { resume, ..request() }).await.unwrap();
        let begun = reader.place().frames;
        resume = None;
        // The stream breaks whenever some more frames have arrived: ever more, since a page of keys that broke off comes again.
        while reader.place().frames < begun + 2 + breaks && !reader.has_ended() {
            reader.push(&pieces.message().await.unwrap().unwrap().data);
            while let Some(frame) = reader.next_frame().unwrap() {
                if let ArchiveFrame::Manifest(manifest) = &frame.content {
                    snapshot.clone_from(&manifest.snapshot);
                }
                contents.push(frame.content.clone());
                let place = frame.place;
                let position = match &frame.content {
                    ArchiveFrame::Actors { position, .. } | ArchiveFrame::Records { position, .. } => {
                        position.clone()
                    }
                    _ => continue,
                };
                resume = Some(v1::ExportPosition {
                    snapshot_id: snapshot.clone(),
                    frames: place.frames,
                    digest: place.digest.to_string(),
                    position,
                });
            }
        }
        breaks += 1;
        if reader.has_ended() {
            // The freeze ends when everything was taken.
            while pieces.message().await.unwrap().is_some() {}
        } else {
            reader = ArchiveReader::at(reader.place());
        }
    }
    assert!(breaks > 2, "{breaks}");
    assert_eq!(frames(&file_of(contents)).0.last().unwrap().place, reader.place(), "one file");

    // The snapshot ends with its freeze.
    let mut pieces = opened(&stage, request()).await.unwrap();
    pieces.message().await.unwrap().unwrap();
    freeze_until(&stage, Timestamp::default()).await;
    let position = v1::ExportPosition {
        snapshot_id: snapshot,
        frames: 1,
        digest: "0".repeat(64),
        position: "actors 0".to_owned(),
    };
    let late = v1::ExportContextRequest { resume: Some(position.clone()), ..request() };
    assert_eq!(failure(opened(&stage, late).await), (Code::FailedPrecondition, "SNAPSHOT_GONE".to_owned()));
    let wrong = v1::ExportPosition { position: "keys x".to_owned(), ..position };
    let wrong = v1::ExportContextRequest { resume: Some(wrong), ..request() };
    assert_eq!(failure(opened(&stage, wrong).await).0, Code::InvalidArgument);
}

async fn secrets_are_left_out_where_that_is_asked(stage: Stage<impl Redis>) {
    fill(&stage).await;
    let mut pieces =
        opened(&stage, v1::ExportContextRequest { without_secrets: true, ..request() }).await.unwrap();
    let mut file = Vec::new();
    while let Some(piece) = pieces.message().await.unwrap() {
        file.extend_from_slice(&piece.data);
    }
    let mut seen = 0;
    for frame in frames(&file).0 {
        match frame.content {
            ArchiveFrame::Manifest(manifest) => assert!(manifest.without_secrets),
            ArchiveFrame::Records { records, .. } => {
                for record in records {
                    let ArchiveValue::Hash(fields) = record.value else { continue };
                    for (name, value) in fields {
                        match &name[..] {
                            b"secret_ref" => assert!(value.is_empty(), "{}", record.key),
                            b"env_vars" if record.key.starts_with("flow:") => {
                                assert_eq!(value, br#"{"A":""}"#, "{}", record.key);
                                seen += 1;
                            }
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    assert!(seen > 0, "flows have variables");
}

scenarios!(
    a_frozen_context_is_read_and_takes_no_changes,
    a_complete_export_ends_the_freeze,
    admins_export,
    an_export_that_broke_off_continues,
    secrets_are_left_out_where_that_is_asked
);
