//! `mycora context import`: a file is checked as a whole, and then sent frame by frame.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use archive::frame::ReadFrame;
use archive::{ArchiveDigest, ArchiveFrame, ArchiveManifest, ArchiveReader};
use clap::{Args, ValueEnum};
use proto::v1;
use rpc::RetryAdvice;
use serde::Serialize;
use tokio::sync::mpsc;

use super::moving_progress::MovingProgress;
use crate::command::{CliSession, values};
use crate::failure::{ApiCallError, CliError};
use crate::output;

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
The context keeps its number, its uid and its actors. It is refused when the number or the uid is taken here, or when an actor of the file has another key here. Actors that are missing are registered. Nobody sees the context until the file is complete.

An import that broke off continues with the same command. --abort removes what an import has written that is not to be continued.

Runner records come along as they were. Supervisors obey one coordinator for each context: delete the context at the coordinator that exported it, or register other runners here.

Examples:
  mycora context import context-3.mycora --as admin
  mycora context import context-3.mycora --running cancel --accept-actor 1 --as admin
  mycora context import --abort 3 --as admin";

/// Waits between streams that broke.
const WAIT: Duration = Duration::from_millis(500);
/// A coordinator that did answer and is away for longer is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that are read or sent at once.
const PIECE_BYTES: usize = 256 * 1024;
/// Pieces that wait to be sent.
const PIECES_AHEAD: usize = 4;

/// Fate of flows that run when their context is imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RunningFlows {
    /// Continue; attempts that were under way count as lost
    #[default]
    Resume,
    /// End as cancelled
    Cancel,
}

/// Arguments of `context import`.
#[derive(Debug, Args)]
pub struct ContextImportArgs {
    /// File that `context export` wrote
    #[arg(value_name = "FILE", required_unless_present = "abort")]
    pub file: Option<PathBuf>,
    /// Let flows that run continue, or cancel them
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub running: RunningFlows,
    /// Actor here that is accepted as the actor of the same number in the file, although it has another key. May be repeated
    #[arg(long = "accept-actor", value_name = "ID", value_parser = values::id)]
    pub accept_actors: Vec<u32>,
    /// Give up the unfinished import of this context, and remove what it has written
    #[arg(long, value_name = "ID", value_parser = values::id, conflicts_with_all = ["file", "accept_actors"])]
    pub abort: Option<u32>,
}

/// Answer of the command.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContextImportDocument {
    context_id: u32,
    context_uid: String,
    snapshot_time: String,
    frames: u64,
    cancelled_flows: u64,
    digest: String,
}

/// A file that was checked.
struct CheckedArchive {
    path: PathBuf,
    manifest: ArchiveManifest,
    /// Where each frame ends in the file.
    ends: Vec<u64>,
    digest: ArchiveDigest,
}

pub(super) async fn run(session: &CliSession, args: &ContextImportArgs) -> Result<(), CliError> {
    if let Some(id) = args.abort {
        abandon(session, id).await?;
        return output::answer(
            session.global.output,
            || serde_json::json!({"contextId": id}),
            || format!("the import of context {id} is given up, and what it had written is removed\n"),
        );
    }
    let file = args.file.as_deref().ok_or_else(|| CliError::Invalid("name a file".to_owned()))?;
    let archive = CheckedArchive::read(file)?;
    let id = archive.manifest.context;
    let answer = tokio::select! {
        answer = send(session, args, &archive) => answer?,
        pressed = tokio::signal::ctrl_c() => return Err(match pressed {
            Ok(()) => CliError::Interrupted(format!(
                "interrupted; the same command continues the import of context {id}, and `mycora context import --abort {id}` \
                 removes what it has written"
            )),
            Err(error) => CliError::Failed(format!("cannot wait for Ctrl-C: {error}")),
        }),
    };
    let document = ContextImportDocument {
        context_id: id.0,
        context_uid: archive.manifest.uid.to_string(),
        snapshot_time: archive.manifest.time.to_string(),
        frames: archive.ends.len() as u64,
        cancelled_flows: answer.cancelled_flows,
        digest: archive.digest.to_string(),
    };
    let text = || match answer.cancelled_flows {
        0 => format!("context {id} is imported, as it was at {}\n", archive.manifest.time),
        count => format!(
            "context {id} is imported, as it was at {}; flows that are cancelled since they were running: {count}\n",
            archive.manifest.time
        ),
    };
    output::answer(session.global.output, || &document, text)
}

/// Sends a file. Streams that break are continued.
async fn send(
    session: &CliSession,
    args: &ContextImportArgs,
    archive: &CheckedArchive,
) -> Result<v1::ImportContextResponse, CliError> {
    let mut progress = MovingProgress::new(session.global.quiet, "importing");
    let (mut taken, mut advanced) = (0, Instant::now());
    loop {
        let before = taken;
        let error = match stream(session, args, archive, &mut taken, &mut progress).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if taken > before {
            advanced = Instant::now();
        }
        // A coordinator that was never there is not waited for.
        let continues = taken > 0 && matches!(error.retry, RetryAdvice::Again { .. });
        if !continues || advanced.elapsed() >= PATIENCE {
            return Err(error.into());
        }
        tokio::time::sleep(WAIT).await;
    }
}

/// Sends the frames that are missing, and returns the last answer.
async fn stream(
    session: &CliSession,
    args: &ContextImportArgs,
    archive: &CheckedArchive,
    taken: &mut u64,
    progress: &mut MovingProgress,
) -> Result<v1::ImportContextResponse, ApiCallError> {
    let (pieces, queue) = mpsc::channel(PIECES_AHEAD);
    let running = match args.running {
        RunningFlows::Resume => v1::ImportedFlows::Resume,
        RunningFlows::Cancel => v1::ImportedFlows::Cancel,
    };
    let start = v1::ImportStart {
        running: running.into(),
        accepted_actors: args.accept_actors.clone(),
        abandon_context_id: 0,
    };
    let manifest_end = archive.ends.first().copied().unwrap_or_default();
    let data = archive.bytes(0, manifest_end).map_err(|error| archive.unreadable(&error))?;
    // The channel has room for it.
    let _ = pieces.try_send(v1::ImportContextRequest { start: Some(start), data: data.into() });
    let mut answers = session.clients.import_context(queue).await?;
    let first = next(&mut answers).await?;
    *taken = first.frames;
    if first.context.is_some() {
        return Ok(first);
    }
    let from = usize::try_from(first.frames).ok().and_then(|frames| archive.ends.get(frames.checked_sub(1)?));
    let (from, to) =
        (from.copied().unwrap_or(manifest_end), archive.ends.last().copied().unwrap_or_default());
    let sent = send_pieces(archive, (from, to), pieces);
    let received = async {
        loop {
            let answer = next(&mut answers).await?;
            progress.advance(answer.records, archive.bytes_between(*taken, answer.frames));
            *taken = answer.frames;
            if answer.context.is_some() {
                return Ok(answer);
            }
        }
    };
    let (_, answer) = tokio::join!(sent, received);
    answer
}

/// Sends the bytes of the file from `from` to `to`, as long as they are taken.
async fn send_pieces(
    archive: &CheckedArchive,
    (mut from, to): (u64, u64),
    pieces: mpsc::Sender<v1::ImportContextRequest>,
) -> Result<(), ApiCallError> {
    while from < to {
        let end = to.min(from + PIECE_BYTES as u64);
        let data = archive.bytes(from, end).map_err(|error| archive.unreadable(&error))?.into();
        if pieces.send(v1::ImportContextRequest { start: None, data }).await.is_err() {
            // The answers tell why.
            return Ok(());
        }
        from = end;
    }
    // The end of the file.
    drop(pieces);
    Ok(())
}

type ImportProgressStream = crate::clients::ApiResponseStream<v1::ImportContextResponse>;

async fn next(answers: &mut ImportProgressStream) -> Result<v1::ImportContextResponse, ApiCallError> {
    let early = || tonic::Status::unavailable("the coordinator ended the import too early").into();
    answers.next().await?.ok_or_else(early)
}

async fn abandon(session: &CliSession, id: u32) -> Result<(), CliError> {
    let (pieces, queue) = mpsc::channel(1);
    let start = v1::ImportStart { abandon_context_id: id, ..Default::default() };
    // The channel has room for it.
    let _ = pieces.try_send(v1::ImportContextRequest { start: Some(start), ..Default::default() });
    let mut answers = session.clients.import_context(queue).await?;
    while answers.next().await?.is_some() {}
    Ok(())
}

impl CheckedArchive {
    /// Reads a whole file and checks it.
    fn read(path: &Path) -> Result<Self, CliError> {
        let unreadable =
            |error: std::io::Error| CliError::Invalid(format!("cannot read {}: {error}", path.display()));
        let unusable =
            |error: archive::ArchiveError| CliError::Invalid(format!("{}: {error}", path.display()));
        let mut file = File::open(path).map_err(unreadable)?;
        let (mut reader, mut manifest, mut ends) = (ArchiveReader::new(), None, Vec::new());
        let (mut buffer, mut end) = (vec![0; PIECE_BYTES], archive::HEADER.len() as u64);
        loop {
            let count = file.read(&mut buffer).map_err(unreadable)?;
            reader.push(&buffer[..count]);
            while let Some(ReadFrame { content, bytes, .. }) = reader.next_frame().map_err(unusable)? {
                end += bytes as u64;
                ends.push(end);
                if let ArchiveFrame::Manifest(found) = content {
                    manifest = Some(found);
                }
            }
            if count == 0 {
                break;
            }
        }
        reader.finish().map_err(unusable)?;
        let manifest = manifest.ok_or_else(|| unusable(archive::ArchiveError::NoArchive))?;
        Ok(Self { path: path.to_owned(), manifest, ends, digest: reader.place().digest })
    }

    /// Bytes of the file.
    fn bytes(&self, from: u64, to: u64) -> std::io::Result<Vec<u8>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or_default()];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The file was read a moment ago, so that a failure is the machine's.
    fn unreadable(&self, error: &std::io::Error) -> ApiCallError {
        tonic::Status::internal(format!("cannot read {}: {error}", self.path.display())).into()
    }

    /// Bytes that the frames between two places take.
    fn bytes_between(&self, from: u64, to: u64) -> usize {
        let end = |frames: u64| {
            let at = usize::try_from(frames).unwrap_or(usize::MAX).checked_sub(1);
            at.and_then(|at| self.ends.get(at)).copied().unwrap_or_default()
        };
        usize::try_from(end(to).saturating_sub(end(from))).unwrap_or_default()
    }
}
