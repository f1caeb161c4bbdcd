//! `mycora context export`: a file that is whole, or a part that the same command continues.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use archive::frame::ReadFrame;
use archive::{ArchiveError, ArchiveFrame, ArchiveManifest, ArchivePlace, ArchiveReader};
use clap::Args;
use proto::v1;
use rpc::{RetryAdvice, RpcReason};
use serde::Serialize;

use super::moving_progress::MovingProgress;
use crate::command::{CliSession, values};
use crate::failure::{ApiCallError, CliError};
use crate::output::{self, usage};

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
The file has everything in the context: flows with their results, logs and files, jobs, messages, members and settings, and the actors that these name, without private keys. Scripts, results and messages are readable in it, and so are environment variables unless --no-secrets leaves out their values.

While the export goes on, the context can be read but takes no changes; running flows wait. What has arrived is in FILE.part until the file is complete. An export that broke off continues with the same command within 60 s; later it begins anew.

Examples:
  mycora context export 3 context-3.mycora
  mycora context export 3 context-3.mycora --no-secrets --force";

/// Waits between streams that broke.
const WAIT: Duration = Duration::from_millis(500);
/// A coordinator that is away for longer has thawed the context.
const PATIENCE: Duration = Duration::from_secs(55);
/// Bytes that are read at once of a part.
const READ_BYTES: usize = 256 * 1024;

/// Arguments of `context export`.
#[derive(Debug, Args)]
pub struct ContextExportArgs {
    /// The context's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// File to write
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Leave out values of environment variables, and references to secrets. Flows that still run lack them where they are imported
    #[arg(long)]
    pub no_secrets: bool,
    /// Replace a file that is there already
    #[arg(long)]
    pub force: bool,
}

/// Answer of the command.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContextExportDocument {
    file: String,
    context_id: u32,
    context_uid: String,
    snapshot_time: String,
    frames: u64,
    records: u64,
    actors: u64,
    bytes: u64,
    digest: String,
}

/// The part of a file that has arrived.
struct ExportPart {
    path: PathBuf,
    file: File,
    reader: ArchiveReader,
    manifest: Option<ArchiveManifest>,
    /// Position that the last whole frame names.
    position: Option<String>,
    records: u64,
    actors: u64,
    /// Bytes of whole frames, with the header.
    bytes: u64,
}

pub(super) async fn run(session: &CliSession, args: &ContextExportArgs) -> Result<(), CliError> {
    let ContextExportArgs { id, file, no_secrets: _, force } = args;
    if !force && file.symlink_metadata().is_ok() {
        let file = file.display();
        return Err(CliError::Invalid(format!(
            "{file} is there already; name another file, or replace it with --force"
        )));
    }
    let mut part = ExportPart::open(file)?;
    part.check_is_of(args)?;
    tokio::select! {
        done = receive(session, args, &mut part) => done?,
        pressed = tokio::signal::ctrl_c() => return Err(match pressed {
            Ok(()) => CliError::Interrupted(format!(
                "interrupted; {} has {} frames; the same command continues within 60 s, and begins anew later",
                part.path.display(),
                part.reader.place().frames
            )),
            Err(error) => CliError::Failed(format!("cannot wait for Ctrl-C: {error}")),
        }),
    }
    part.finish(file)?;
    let document = part.document(file, *id);
    let text = || {
        let ContextExportDocument { file, records, actors, bytes, .. } = &document;
        let bytes = usage::bytes(*bytes);
        format!("context {id} is in {file}: {records} records, {actors} actors, {bytes}\n")
    };
    output::answer(session.global.output, || &document, text)
}

/// Receives what is missing of a file. Streams that break are continued.
async fn receive(
    session: &CliSession,
    args: &ContextExportArgs,
    part: &mut ExportPart,
) -> Result<(), CliError> {
    let mut progress = MovingProgress::new(session.global.quiet, "exporting");
    let mut arrived = Instant::now();
    // An earlier call may have ended just before it gave the file its name.
    while !part.reader.has_ended() {
        let before = part.reader.place().frames;
        let error = match stream(session, args, part, &mut progress).await {
            Ok(()) => continue,
            Err(ExportStreamError::Own(error)) => return Err(error),
            Err(ExportStreamError::Call(error)) => error,
        };
        if error.view.reason == RpcReason::SnapshotGone.as_str() && part.manifest.is_some() {
            if !session.global.quiet {
                let path = part.path.display();
                output::note(&format!("the snapshot of {path} is over; the export begins anew"));
            }
            part.begin_anew()?;
            continue;
        }
        if part.reader.place().frames > before {
            arrived = Instant::now();
        }
        // Bytes behind the last whole frame come again.
        part.drop_rest()?;
        // Without a whole frame there is nothing to continue, and the caller need not wait for a coordinator that is not there.
        let continues = part.manifest.is_some() && matches!(error.retry, RetryAdvice::Again { .. });
        if !continues || arrived.elapsed() >= PATIENCE {
            return Err(error.into());
        }
        tokio::time::sleep(WAIT).await;
    }
    Ok(())
}

/// Why a stream did not bring everything.
enum ExportStreamError {
    Call(ApiCallError),
    Own(CliError),
}

impl From<ApiCallError> for ExportStreamError {
    fn from(error: ApiCallError) -> Self {
        Self::Call(error)
    }
}

async fn stream(
    session: &CliSession,
    args: &ContextExportArgs,
    part: &mut ExportPart,
    progress: &mut MovingProgress,
) -> Result<(), ExportStreamError> {
    let request = v1::ExportContextRequest {
        context_id: args.id,
        without_secrets: args.no_secrets,
        resume: part.resume(),
    };
    if request.resume.is_none() {
        part.begin_anew().map_err(ExportStreamError::Own)?;
    }
    let mut pieces = session.clients.export_context(request).await?;
    while let Some(v1::ExportContextResponse { data }) = pieces.next().await? {
        part.take(&data).map_err(ExportStreamError::Own)?;
        progress.advance(part.records, data.len());
    }
    if part.reader.has_ended() {
        return Ok(());
    }
    // A stream that ends without an error has brought the last frame.
    let cut = ArchiveError::CutOff { frames: part.reader.place().frames };
    Err(ExportStreamError::Own(CliError::Failed(format!(
        "the coordinator ended the export too early: {cut}"
    ))))
}

impl ExportPart {
    /// Opens the part of a file, with what an earlier call has left of whole frames.
    fn open(file: &Path) -> Result<Self, CliError> {
        let mut name = file.as_os_str().to_owned();
        name.push(".part");
        let path = PathBuf::from(name);
        // The file may have secrets.
        let opened =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let opened = opened.map_err(|error| failed(&path, &error))?;
        let reader = ArchiveReader::new();
        let (manifest, position) = (None, None);
        let mut part =
            Self { path, file: opened, reader, manifest, position, records: 0, actors: 0, bytes: 0 };
        part.read_back()?;
        Ok(part)
    }

    /// Refuses the part of another context. A part with other secrets than are wanted is emptied.
    fn check_is_of(&mut self, args: &ContextExportArgs) -> Result<(), CliError> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let (found, path) = (manifest.context.0, self.path.display());
        if found != args.id {
            return Err(CliError::Invalid(format!(
                "{path} is a part of an export of context {found}: remove it first"
            )));
        }
        if manifest.without_secrets == args.no_secrets { Ok(()) } else { self.begin_anew() }
    }

    /// Reads what is there, up to the last whole frame.
    fn read_back(&mut self) -> Result<(), CliError> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = self.file.read(&mut buffer).map_err(|error| failed(&self.path, &error))?;
            self.reader.push(&buffer[..count]);
            match self.read_frames() {
                Ok(()) if count > 0 => {}
                Ok(()) => return self.drop_rest(),
                Err(ArchiveError::NoArchive) => {
                    let path = self.path.display();
                    return Err(CliError::Invalid(format!(
                        "{path} is there, and is no part of an export: remove it first"
                    )));
                }
                // A machine that broke down has left something else: all of it comes again.
                Err(_) => return self.begin_anew(),
            }
        }
    }

    fn read_frames(&mut self) -> Result<(), ArchiveError> {
        while let Some(frame) = self.reader.next_frame()? {
            let ReadFrame { content, place: _, bytes } = frame;
            if self.bytes == 0 {
                self.bytes = archive::HEADER.len() as u64;
            }
            self.bytes += bytes as u64;
            match content {
                ArchiveFrame::Manifest(manifest) => self.manifest = Some(manifest),
                ArchiveFrame::Actors { actors, position } => {
                    self.actors += actors.len() as u64;
                    self.position = Some(position);
                }
                ArchiveFrame::Records { records, position } => {
                    self.records += records.len() as u64;
                    self.position = Some(position);
                }
                ArchiveFrame::End { frames: _ } => {}
            }
        }
        Ok(())
    }

    /// Where the export continues; nothing when it has to begin.
    fn resume(&self) -> Option<v1::ExportPosition> {
        let (manifest, position) = (self.manifest.as_ref()?, self.position.clone()?);
        if self.reader.has_ended() {
            return None;
        }
        let ArchivePlace { frames, digest } = self.reader.place();
        Some(v1::ExportPosition {
            snapshot_id: manifest.snapshot.clone(),
            frames,
            digest: digest.to_string(),
            position,
        })
    }

    /// Empties the part.
    fn begin_anew(&mut self) -> Result<(), CliError> {
        (self.reader, self.manifest, self.position) = (ArchiveReader::new(), None, None);
        (self.records, self.actors, self.bytes) = (0, 0, 0);
        self.cut()
    }

    /// Forgets what arrived behind the last whole frame.
    fn drop_rest(&mut self) -> Result<(), CliError> {
        if self.manifest.is_none() {
            return self.begin_anew();
        }
        // A reader behind the last frame of an export keeps knowing that.
        if !self.reader.has_ended() {
            self.reader = ArchiveReader::at(self.reader.place());
        }
        self.cut()
    }

    /// Cuts the file behind its last whole frame.
    fn cut(&mut self) -> Result<(), CliError> {
        use std::io::{Seek as _, SeekFrom};
        let cut = self.file.set_len(self.bytes).and_then(|()| self.file.seek(SeekFrom::Start(self.bytes)));
        cut.map(drop).map_err(|error| failed(&self.path, &error))
    }

    /// Writes bytes that arrived, and checks the frames that they complete.
    fn take(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all(bytes).map_err(|error| failed(&self.path, &error))?;
        self.reader.push(bytes);
        self.read_frames()
            .map_err(|error| CliError::Failed(format!("the export did not arrive as it was sent: {error}")))
    }

    /// Gives the file its name, once it is on the disk.
    fn finish(&self, file: &Path) -> Result<(), CliError> {
        let named = self.file.sync_all().and_then(|()| fs::rename(&self.path, file));
        named.map_err(|error| failed(file, &error))
    }

    fn document(&self, file: &Path, context_id: u32) -> ContextExportDocument {
        let ArchivePlace { frames, digest } = self.reader.place();
        let manifest = self.manifest.as_ref();
        ContextExportDocument {
            file: file.display().to_string(),
            context_id,
            context_uid: manifest.map(|manifest| manifest.uid.to_string()).unwrap_or_default(),
            snapshot_time: manifest.map(|manifest| manifest.time.to_string()).unwrap_or_default(),
            frames,
            records: self.records,
            actors: self.actors,
            bytes: self.bytes,
            digest: digest.to_string(),
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> CliError {
    CliError::Failed(format!("cannot write {}: {error}", path.display()))
}
