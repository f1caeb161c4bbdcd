//! Contexts that are exported and imported: as they were, or not at all.

mod exports;
mod imports;

use std::collections::BTreeMap;

use archive::frame::ReadFrame;
use archive::{ArchiveFrame, ArchivePlace, ArchiveReader};
use bytes::Bytes;
use identity::Identity;
use keys::Layout;
use kv::{Cmd, Value};
use model::limits::BLOB_CHUNK_BYTES;
use model::{FlowInput, NodeState, Timestamp};
use proto::internal::v1 as wire;
use proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::letters::chat;
use crate::places::Redis;
use crate::received::{accepted, letter};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, Running, Stage, json, script};

/// Bytes that do not get smaller.
pub(crate) fn noise(len: usize) -> Bytes {
    let mut state = 0x2545_f491_u32;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    (0..len).map(step).collect::<Vec<u8>>().into()
}

/// Fills a context with something of every kind. Returns a flow that runs, and waits for a signal.
pub(crate) async fn fill(stage: &Stage<impl Redis>) -> Running {
    let blob = noise(8 * BLOB_CHUNK_BYTES);
    let pieces = blob.chunks(BLOB_CHUNK_BYTES).map(|piece| v1::PutBlobRequest {
        context_id: CONTEXT,
        data: blob.slice_ref(piece),
        ..Default::default()
    });
    let pieces: Vec<_> = pieces.collect();
    stage.jobs(EXECUTOR).put_blob(tokio_stream::iter(pieces)).await.unwrap();
    let runner = v1::RegisterRunnerRequest {
        context_id: CONTEXT,
        address: "mycelium:[400::1]".to_owned(),
        envelope: v1::EnvelopeForm::Plain.into(),
        secret_ref: "token".to_owned(),
        ..Default::default()
    };
    stage
        .runners()
        .put_runner(wire::PutRunnerRequest { runner: Some(runner), on_behalf_of: ADMIN })
        .await
        .unwrap();
    let job = v1::CreateJobRequest {
        request_id: "kept".to_owned(),
        context_id: CONTEXT,
        spec: Some(proto::convert::job::spec_to_wire(&script("true"))),
        ..Default::default()
    };
    stage.jobs(EXECUTOR).create_job(job).await.unwrap();
    crate::letters::send(stage, EXECUTOR, chat(&READER.to_string(), "sent from here")).await;
    accepted(stage, &letter(1)).await;
    ended(stage, 1).await;
    let mut running = stage.started(500).await;
    let step = wire::CommitRequest {
        messages: vec![running.message(102)],
        due_millis: 4_000_000_000_000,
        ..running.step()
    };
    stage.apply(&mut running, step).await;
    stage.push(&running, &FlowInput::Signal { name: "go".parse().unwrap() }).await;
    // The ended flow is measured, so that nothing changes any more.
    stage.sweep(Timestamp::now()).await;
    running
}

/// A flow that has ended, with a message and a log.
async fn ended(stage: &Stage<impl Redis>, message: u32) {
    let mut flow = stage.started(2).await;
    let mut node = flow.node(0);
    (node.attempt, node.state) = (model::Attempt(1), NodeState::Completed);
    let step = wire::CommitRequest { messages: vec![flow.message(message)], ..flow.step() };
    stage.apply(&mut flow, step).await;
    stage.messages().append_logs(wire::AppendLogsRequest { chunks: vec![flow.log_chunk()] }).await.unwrap();
    let change = wire::NodeCommit {
        job_id: node.job_id.0,
        node_json: json(&node),
        job_status: "finished".to_owned(),
        ..Default::default()
    };
    let end = wire::CommitRequest { nodes: vec![change], ..flow.end() };
    stage.apply(&mut flow, end).await;
}

pub(crate) fn request() -> v1::ExportContextRequest {
    v1::ExportContextRequest { context_id: CONTEXT, ..Default::default() }
}

pub(crate) async fn opened(
    stage: &Stage<impl Redis>,
    request: v1::ExportContextRequest,
) -> Result<Streaming<v1::ExportContextResponse>, Status> {
    Ok(stage.contexts(Identity::Admin).export_context(request).await?.into_inner())
}

/// The whole file of an export.
pub(crate) async fn exported(stage: &Stage<impl Redis>) -> Vec<u8> {
    let mut pieces = opened(stage, request()).await.unwrap();
    let mut file = Vec::new();
    while let Some(piece) = pieces.message().await.unwrap() {
        file.extend_from_slice(&piece.data);
    }
    file
}

/// Frames of a file, and where each ends.
pub(crate) fn frames(file: &[u8]) -> (Vec<ReadFrame>, Vec<usize>) {
    let (mut reader, mut frames, mut ends) = (ArchiveReader::new(), Vec::new(), Vec::new());
    reader.push(file);
    let mut end = archive::HEADER.len();
    while let Some(frame) = reader.next_frame().unwrap() {
        end += frame.bytes;
        frames.push(frame);
        ends.push(end);
    }
    (frames, ends)
}

/// A file of these frames.
pub(crate) fn file_of(frames: impl IntoIterator<Item = ArchiveFrame>) -> Vec<u8> {
    let (mut file, mut place) = (archive::HEADER.to_vec(), ArchivePlace::start());
    for frame in frames {
        let (bytes, after) = archive::encode(place, frame).unwrap();
        file.extend(bytes);
        place = after;
    }
    file
}

/// An import under way.
pub(crate) struct Importing {
    pieces: mpsc::Sender<v1::ImportContextRequest>,
    answers: Streaming<v1::ImportContextResponse>,
}

impl Importing {
    pub(crate) async fn begin(
        stage: &Stage<impl Redis>,
        start: v1::ImportStart,
        data: &[u8],
    ) -> Result<Self, Status> {
        let (pieces, queue) = mpsc::channel(1);
        let first = v1::ImportContextRequest { start: Some(start), data: data.to_vec().into() };
        pieces.send(first).await.unwrap();
        let answers = stage.contexts(Identity::Admin).import_context(ReceiverStream::new(queue)).await?;
        Ok(Self { pieces, answers: answers.into_inner() })
    }

    pub(crate) async fn answer(&mut self) -> Result<v1::ImportContextResponse, Status> {
        self.answers.message().await?.ok_or_else(|| Status::unavailable("no more answers"))
    }

    /// Sends some more bytes; an import that was refused takes none.
    pub(crate) async fn send(&mut self, data: &[u8]) {
        for piece in data.chunks(100_000) {
            let piece = v1::ImportContextRequest { start: None, data: piece.to_vec().into() };
            if self.pieces.send(piece).await.is_err() {
                return;
            }
        }
    }

    /// Reads answers up to the last.
    pub(crate) async fn end(self) -> Result<v1::ImportContextResponse, Status> {
        let Self { pieces, mut answers } = self;
        drop(pieces);
        let mut last = None;
        while let Some(answer) = answers.message().await? {
            last = Some(answer);
        }
        last.ok_or_else(|| Status::unavailable("no answers"))
    }
}

/// Imports a whole file.
pub(crate) async fn imported(
    stage: &Stage<impl Redis>,
    start: v1::ImportStart,
    file: &[u8],
) -> Result<v1::ImportContextResponse, Status> {
    let first = frames_end(file, 1);
    let mut import = Importing::begin(stage, start, &file[..first]).await?;
    let taken = usize::try_from(import.answer().await?.frames).unwrap();
    let rest = file[frames_end(file, taken)..].to_vec();
    let Importing { pieces, answers } = import;
    let sending = tokio::spawn(async move {
        for piece in rest.chunks(100_000) {
            let piece = v1::ImportContextRequest { start: None, data: piece.to_vec().into() };
            if pieces.send(piece).await.is_err() {
                return;
            }
        }
    });
    let mut answers = answers;
    let mut last = Err(Status::unavailable("no answers"));
    loop {
        match answers.message().await {
            Ok(Some(answer)) => last = Ok(answer),
            Ok(None) => break,
            Err(error) => {
                last = Err(error);
                break;
            }
        }
    }
    sending.await.unwrap();
    last
}

/// Where the first `count` frames of a file end, by the lengths that they claim; the end of a file that has fewer.
fn frames_end(file: &[u8], count: usize) -> usize {
    let mut end = archive::HEADER.len();
    for _ in 0..count {
        let Some(length) = file.get(end..).and_then(|rest| rest.first_chunk::<4>()) else { break };
        end = end.saturating_add(36 + u32::from_be_bytes(*length) as usize);
    }
    end.min(file.len())
}

/// Removes the context of a stage, so that a file can be imported there.
pub(crate) async fn make_room(stage: &Stage<impl Redis>) {
    let request = v1::DeleteContextRequest { context_id: CONTEXT, ..Default::default() };
    stage.contexts(Identity::Admin).delete_context(request).await.unwrap();
}

/// Everything in the context: name of the key without the beginning that the layout adds, and the value as text.
pub(crate) async fn everything(stage: &Stage<impl Redis>) -> BTreeMap<String, String> {
    let prefix = stage.keys().prefix().to_owned();
    let names = stage.command(Cmd::new("KEYS").arg(&format!("{prefix}*"))).await.texts().unwrap();
    let mut all = BTreeMap::new();
    for name in names {
        let kind = stage.command(Cmd::new("TYPE").arg(&name)).await.text().unwrap();
        let read = |command: &str| Cmd::new(command).arg(&name);
        let (query, is_ordered) = match kind.as_str() {
            "hash" => (read("HGETALL"), false),
            "set" => (read("SMEMBERS"), false),
            "zset" => (read("ZRANGE").arg(0).arg(-1).arg("WITHSCORES"), true),
            "list" => (read("LRANGE").arg(0).arg(-1), true),
            "stream" => (read("XRANGE").arg("-").arg("+"), true),
            _ => (read("GET"), true),
        };
        let value = text_of(stage.command(query).await, kind == "hash", is_ordered);
        let value = if prefix.is_empty() { value } else { value.replace(&prefix, "") };
        all.insert(name.strip_prefix(prefix.as_str()).unwrap_or(&name).to_owned(), value);
    }
    all
}

fn text_of(value: Value, in_pairs: bool, is_ordered: bool) -> String {
    let Value::Array(values) = value else { return shown(&value) };
    let mut texts: Vec<String> = values.iter().map(shown).collect();
    if in_pairs {
        texts = texts.chunks(2).map(|pair| pair.join(" = ")).collect();
    }
    if !is_ordered {
        texts.sort();
    }
    texts.join("\n")
}

fn shown(value: &Value) -> String {
    match value {
        Value::Nil => "-".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(values) => format!("[{}]", values.iter().map(shown).collect::<Vec<_>>().join(", ")),
    }
}

pub(crate) const LAYOUTS: [(Layout, Layout); 3] = [
    (Layout::Database, Layout::Database),
    (Layout::Database, Layout::HashTag),
    (Layout::HashTag, Layout::Database),
];
