//! Streams of exports and imports of contexts.

use std::collections::BTreeSet;

use ::rpc::while_member;
use archive::frame::ReadFrame;
use archive::{ArchiveDigest, ArchiveError, ArchiveFrame, ArchivePlace, ArchiveReader};
use bytes::Bytes;
use futures_util::StreamExt as _;
use model::id::Uid;
use model::{ActorId, ContextId, Role, Timestamp, Violations, limits};
use proto::{convert, required, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::uploads::PIECE_SECS_MAX;
use super::{StorageResponseStream, StorageRpc};
use crate::error::Error;
use crate::moving::import::{ContextImport, ImportOptions, ImportedContext};
use crate::moving::snapshot::{ExportResume, SnapshotPosition};

/// Pieces of an export that are read ahead of the caller.
const EXPORT_AHEAD: usize = 8;
/// Answers of an import that wait for the caller.
const ANSWERS_AHEAD: usize = 16;
/// Actors that an import may accept by name.
const ACCEPTED_MAX: usize = limits::CONTEXT_MEMBERS_MAX;

impl StorageRpc {
    /// Freezes a context and begins to send it.
    pub(super) async fn begin_export(
        &self,
        actor: Option<ActorId>,
        request: v1::ExportContextRequest,
    ) -> Result<StorageResponseStream<v1::ExportContextResponse>, Status> {
        let mut violations = required::missing(&request);
        let v1::ExportContextRequest { context_id, without_secrets, resume } = request;
        let resume = resume.and_then(|position| parse_position(&position, &mut violations));
        violations.into_result(Some(())).map_err(Error::from)?;
        let (store, context) = (self.hub.store(), ContextId(context_id));
        let export = store.begin_export(context, actor, without_secrets, resume, Timestamp::now()).await?;
        let (pieces, sent) = mpsc::channel::<Bytes>(EXPORT_AHEAD);
        let (answers, received) = mpsc::channel(1);
        tokio::spawn(async move {
            if let Err(error) = export.run(&pieces).await {
                tracing::warn!(%context, %error, "an export broke off");
                // Behind the pieces that were sent; without a reader nobody asks why.
                let _ = answers.send(Err(Status::from(error))).await;
            }
        });
        let pieces = ReceiverStream::new(sent).map(|data| Ok(v1::ExportContextResponse { data }));
        let stream = pieces.chain(ReceiverStream::new(received));
        let Some(actor) = actor else { return Ok(self.until_stop(stream)) };
        Ok(self.until_stop(while_member(stream, self.identities.directory(), context, actor, Role::Admin)))
    }

    /// Begins to take a context from the caller's pieces.
    pub(super) fn begin_import(
        &self,
        pieces: Streaming<v1::ImportContextRequest>,
    ) -> StorageResponseStream<v1::ImportContextResponse> {
        let (answers, received) = mpsc::channel(ANSWERS_AHEAD);
        let rpc = self.clone();
        tokio::spawn(async move {
            if let Err(status) = rpc.import(pieces, &answers).await {
                // Without a reader nobody asks why.
                let _ = answers.send(Err(status)).await;
            }
        });
        self.until_stop(ReceiverStream::new(received))
    }

    async fn import(
        &self,
        mut pieces: Streaming<v1::ImportContextRequest>,
        answers: &ImportAnswerSender,
    ) -> Result<(), Status> {
        let first = next_piece(&mut pieces).await?;
        let first = first.ok_or_else(|| Error::field("start", "the first message begins the import"))?;
        let v1::ImportContextRequest { start, data } = first;
        let (options, abandoned) = parse_start(start)?;
        if let Some(context) = abandoned {
            self.removals.abandon_import(context, Timestamp::now()).await?;
            return Ok(());
        }
        let mut reader = ArchiveReader::new();
        reader.push(&data);
        let mut import = self.begin_with_manifest(&mut reader, &mut pieces, options).await?;
        // The caller continues behind the frames that are written already.
        let mut reader = ArchiveReader::at(import.place());
        tell(answers, progress(&import)).await?;
        while !import.is_written() {
            let Some(frame) = next_frame(&mut reader, &mut pieces).await? else {
                reader.finish().map_err(Error::from)?;
                break;
            };
            import.take(frame, Timestamp::now()).await?;
            tell(answers, progress(&import)).await?;
        }
        let mut last = progress(&import);
        let ImportedContext { context, cancelled_flows } = import.publish(Timestamp::now()).await?;
        last.context = Some(convert::context::to_wire(&context));
        last.cancelled_flows = cancelled_flows;
        tell(answers, last).await
    }

    /// Reads the frame with the manifest, and begins or continues the import of its context.
    async fn begin_with_manifest(
        &self,
        reader: &mut ArchiveReader,
        pieces: &mut Streaming<v1::ImportContextRequest>,
        options: ImportOptions,
    ) -> Result<ContextImport, Status> {
        let Some(ReadFrame { content, place, .. }) = next_frame(reader, pieces).await? else {
            reader.finish().map_err(Error::from)?;
            return Err(Error::from(ArchiveError::CutOff { frames: 0 }).into());
        };
        let ArchiveFrame::Manifest(manifest) = content else {
            return Err(Error::from(ArchiveError::NoArchive).into());
        };
        Ok(self.hub.store().begin_import(&manifest, place, options, Timestamp::now()).await?)
    }
}

type ImportAnswerSender = mpsc::Sender<Result<v1::ImportContextResponse, Status>>;

/// Tells the caller how far the import is.
async fn tell(answers: &ImportAnswerSender, answer: v1::ImportContextResponse) -> Result<(), Status> {
    let gone = |_| Status::cancelled("the caller has gone");
    answers.send(Ok(answer)).await.map_err(gone)
}

fn progress(import: &ContextImport) -> v1::ImportContextResponse {
    let frames = import.place().frames;
    v1::ImportContextResponse { frames, records: import.records(), context: None, cancelled_flows: 0 }
}

/// Reads the next frame; nothing when the caller has sent everything.
async fn next_frame(
    reader: &mut ArchiveReader,
    pieces: &mut Streaming<v1::ImportContextRequest>,
) -> Result<Option<ReadFrame>, Status> {
    loop {
        if let Some(frame) = reader.next_frame().map_err(Error::from)? {
            return Ok(Some(frame));
        }
        let Some(v1::ImportContextRequest { start: _, data }) = next_piece(pieces).await? else {
            return Ok(None);
        };
        reader.push(&data);
    }
}

/// Receives the next piece. A caller that sends nothing for a while is not waited for.
async fn next_piece(
    pieces: &mut Streaming<v1::ImportContextRequest>,
) -> Result<Option<v1::ImportContextRequest>, Status> {
    let patience = std::time::Duration::from_secs(PIECE_SECS_MAX);
    match tokio::time::timeout(patience, pieces.message()).await {
        Ok(piece) => piece,
        Err(_) => {
            let message = format!("no piece came within {PIECE_SECS_MAX} s: import again, which continues");
            let (kind, reason) = (::rpc::ErrorKind::DeadlineExceeded, ::rpc::RpcReason::DeadlineExceeded);
            Err(::rpc::Error::new(kind, reason, message).into())
        }
    }
}

/// Options of an import, and the context whose unfinished import is given up instead.
fn parse_start(start: Option<v1::ImportStart>) -> Result<(ImportOptions, Option<ContextId>), Error> {
    let start =
        start.ok_or_else(|| Error::field("start", "is missing: the first message begins the import"))?;
    let v1::ImportStart { running, accepted_actors, abandon_context_id } = start;
    let cancels = match v1::ImportedFlows::try_from(running) {
        Ok(v1::ImportedFlows::Unspecified | v1::ImportedFlows::Resume) => false,
        Ok(v1::ImportedFlows::Cancel) => true,
        Err(_) => return Err(Error::field("start.running", "is none of the known values")),
    };
    if accepted_actors.len() > ACCEPTED_MAX {
        let (max, requested) = (ACCEPTED_MAX as u64, accepted_actors.len() as u64);
        return Err(Error::Limit { limit: "accepted actors", max, requested });
    }
    let accepted: BTreeSet<ActorId> = accepted_actors.into_iter().map(ActorId).collect();
    let abandoned = (abandon_context_id != 0).then_some(ContextId(abandon_context_id));
    Ok((ImportOptions { cancels, accepted }, abandoned))
}

/// Parses where an export continues.
fn parse_position(position: &v1::ExportPosition, violations: &mut Violations) -> Option<ExportResume> {
    let v1::ExportPosition { snapshot_id, frames, digest, position } = position;
    let snapshot = violations.take("resume.snapshot_id", snapshot_id.parse::<Uid>());
    let digest = violations.take("resume.digest", digest.parse::<ArchiveDigest>());
    let position = violations.take("resume.position", position.parse::<SnapshotPosition>());
    let place = ArchivePlace { frames: *frames, digest: digest? };
    Some(ExportResume { snapshot: snapshot?, place, position: position? })
}
