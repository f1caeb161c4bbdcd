//! Output of a script: bounded, gathered, reported.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::limits::OUTPUT_BYTES_MAX;
use model::{JobKey, Timestamp};
use queue::{InstanceSession, JobRecordOutcome, LogChunk, OUTPUT_TAIL_BYTES_MAX};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::interrupt::{Interrupt, InterruptCause, InterruptRequest};
use crate::{LOG_BYTES_MAX, LOG_INTERVAL};

/// Pieces that may wait to be gathered before the printing script is held back.
const PIECES_MAX: usize = 16;
/// Bytes kept from the end of dropped output: errors are mostly printed last.
const LAST_BYTES: usize = 16 * 1024;
/// Pause between tries to report.
const RETRY: Duration = Duration::from_millis(200);

/// Which of its two outputs a script printed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Sender for the output of a script.
#[derive(Debug, Clone)]
pub(crate) struct ScriptOutputSender {
    pieces: mpsc::Sender<(ScriptStream, Vec<u8>)>,
    distinguishes_streams: bool,
}

impl ScriptOutputSender {
    /// Returns true if the gatherer distinguishes standard output from standard error. Otherwise a process has one pipe for both,
    /// which keeps the order.
    pub(crate) const fn distinguishes_streams(&self) -> bool {
        self.distinguishes_streams
    }

    /// Sends output; waits while too many pieces are pending.
    pub(crate) async fn print(&self, stream: ScriptStream, bytes: Vec<u8>) {
        // Fails only when the gatherer is gone: then the attempt is over.
        let _ = self.pieces.send((stream, bytes)).await;
    }
}

/// Output that was not yet reported when the script ended, and a summary of the whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ScriptOutputSummary {
    /// Last piece, to be reported together with the end.
    pub(crate) last_log: Option<LogChunk>,
    /// Bytes that were printed and kept.
    pub(crate) bytes: u64,
    /// End of the output.
    pub(crate) tail: String,
}

/// Makes a sender and a receiver, which gathers until every clone of the sender is gone. `distinguishes_streams`: whether standard
/// output and standard error must be distinguished.
pub(crate) fn output_channel(distinguishes_streams: bool) -> (ScriptOutputSender, ScriptOutputReceiver) {
    let (pieces, receiver) = mpsc::channel(PIECES_MAX);
    (ScriptOutputSender { pieces, distinguishes_streams }, ScriptOutputReceiver(receiver))
}

/// The other end of a [`ScriptOutputSender`].
#[derive(Debug)]
pub(crate) struct ScriptOutputReceiver(mpsc::Receiver<(ScriptStream, Vec<u8>)>);

impl ScriptOutputReceiver {
    /// Returns the next piece, as it was printed; nothing when the sender is gone.
    pub(crate) async fn next(&mut self) -> Option<(ScriptStream, Vec<u8>)> {
        self.0.recv().await
    }

    /// Gathers and reports until the sender is gone.
    pub(crate) async fn gather(
        mut self,
        instance: InstanceSession,
        key: JobKey,
        log: AttemptLogFile,
        interrupt: Arc<Interrupt>,
    ) -> ScriptOutputSummary {
        let mut gathered = ScriptOutputBuffer { log: Some(log), ..ScriptOutputBuffer::default() };
        let mut due: Option<Instant> = None;
        loop {
            let flush_time = due.unwrap_or_else(|| Instant::now() + LOG_INTERVAL);
            tokio::select! {
                piece = self.0.recv() => match piece {
                    None => break,
                    Some((stream, bytes)) => {
                        gathered.add(stream, &bytes, Timestamp::now());
                        due = due.or_else(|| Some(Instant::now() + LOG_INTERVAL));
                    }
                },
                () = tokio::time::sleep_until(flush_time), if due.is_some() => {
                    report(&mut gathered, 0, &instance, key, &interrupt).await;
                    due = None;
                }
            }
            report(&mut gathered, LOG_BYTES_MAX, &instance, key, &interrupt).await;
        }
        gathered.close();
        report(&mut gathered, LOG_BYTES_MAX, &instance, key, &interrupt).await;
        let last_log = gathered.next_chunk();
        if let Some(chunk) = &last_log {
            gathered.keep(chunk).await;
        }
        ScriptOutputSummary { last_log, bytes: gathered.offset, tail: gathered.tail }
    }
}

/// Reports pieces while more than `keep` bytes are gathered. Nothing is dropped while Redis is away, so the script is
/// eventually held back.
async fn report(
    gathered: &mut ScriptOutputBuffer,
    keep: usize,
    instance: &InstanceSession,
    key: JobKey,
    interrupt: &Interrupt,
) {
    while gathered.pending.len() > keep {
        let Some(chunk) = gathered.next_chunk() else { return };
        gathered.keep(&chunk).await;
        loop {
            match instance.log(key, chunk.clone()).await {
                Ok(JobRecordOutcome::Recorded) => break,
                Ok(JobRecordOutcome::Closed(_)) => {
                    interrupt
                        .raise(InterruptRequest { cause: InterruptCause::Closed, grace: Duration::ZERO });
                    break;
                }
                Err(error) => {
                    tracing::debug!(%key, %error, "a piece of output cannot be reported yet; retrying");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// Log file with the complete output of an attempt, created with the first output.
#[derive(Debug)]
pub(crate) struct AttemptLogFile {
    path: PathBuf,
    file: Option<File>,
}

impl AttemptLogFile {
    /// Creates a log that will be at `path`.
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    async fn append(&mut self, chunk: &LogChunk) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                if let Some(dir) = self.path.parent() {
                    tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).await?;
                }
                let mut options = File::options();
                let made =
                    options.create(true).write(true).truncate(true).mode(0o600).open(&self.path).await?;
                self.file.insert(made)
            }
        };
        file.write_all(chunk.text.as_bytes()).await?;
        // Flushed before the report, so that a reader of the report finds the output in the file.
        file.flush().await
    }
}

#[derive(Debug, Default)]
struct ScriptOutputBuffer {
    pending: String,
    /// Time of the first pending output.
    since: Option<Timestamp>,
    /// Number of bytes before the pending output.
    offset: u64,
    tail: String,
    log: Option<AttemptLogFile>,
    out: OutputDecoder,
    err: OutputDecoder,
}

/// Turns one stream's bytes into text, whatever the pieces they come in.
#[derive(Debug, Default)]
struct OutputDecoder {
    taken: u64,
    marked: bool,
    partial: Vec<u8>,
    /// End of the dropped output.
    last: Vec<u8>,
}

impl ScriptOutputBuffer {
    fn add(&mut self, stream: ScriptStream, bytes: &[u8], now: Timestamp) {
        if self.pending.is_empty() {
            self.since = Some(now);
        }
        let decoder = match stream {
            ScriptStream::Out => &mut self.out,
            ScriptStream::Err => &mut self.err,
        };
        let room = OUTPUT_BYTES_MAX.saturating_sub(decoder.taken);
        let kept = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let before = self.pending.len();
        decoder.decode(&bytes[..kept], &mut self.pending);
        // Bytes that are no UTF-8 become longer.
        decoder.taken += (self.pending.len() - before).max(kept) as u64;
        if kept < bytes.len() {
            if !std::mem::replace(&mut decoder.marked, true) {
                decoder.finish(&mut self.pending);
                self.pending.push_str(&format!(
                    "\n[mycora: what follows {OUTPUT_BYTES_MAX} bytes was dropped, but for its end]\n"
                ));
            }
            decoder.keep_last(&bytes[kept..]);
        }
        self.extend_tail(before);
    }

    /// Adds a piece to the log file.
    async fn keep(&mut self, chunk: &LogChunk) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = log.append(chunk).await {
            tracing::warn!(
                path = %log.path.display(), %error,
                "a log file cannot be written; its log is incomplete"
            );
            self.log = None;
        }
    }

    fn close(&mut self) {
        let before = self.pending.len();
        self.out.close(&mut self.pending);
        self.err.close(&mut self.pending);
        self.extend_tail(before);
    }

    fn extend_tail(&mut self, from: usize) {
        self.tail.push_str(&self.pending[from..]);
        if self.tail.len() > 2 * OUTPUT_TAIL_BYTES_MAX {
            let mut cut = self.tail.len() - OUTPUT_TAIL_BYTES_MAX;
            while !self.tail.is_char_boundary(cut) {
                cut += 1;
            }
            self.tail.drain(..cut);
        }
    }

    /// Returns the next piece to report, of at most [`LOG_BYTES_MAX`].
    fn next_chunk(&mut self) -> Option<LogChunk> {
        let mut len = self.pending.len().min(LOG_BYTES_MAX);
        while !self.pending.is_char_boundary(len) {
            len -= 1;
        }
        if len == 0 {
            return None;
        }
        let rest = self.pending.split_off(len);
        let chunk = LogChunk {
            offset: self.offset,
            text: std::mem::replace(&mut self.pending, rest),
            time: self.since,
        };
        self.offset += len as u64;
        Some(chunk)
    }
}

impl OutputDecoder {
    fn decode(&mut self, bytes: &[u8], text: &mut String) {
        let joined;
        let mut rest = if self.partial.is_empty() {
            bytes
        } else {
            self.partial.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.partial);
            &joined
        };
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return;
                }
                Err(error) => {
                    let (valid, invalid) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        // The rest of the character may come with the next piece.
                        None => {
                            self.partial = invalid.to_vec();
                            return;
                        }
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &invalid[len..];
                        }
                    }
                }
            }
        }
    }

    /// Keeps the end of dropped output, in case no more follows.
    fn keep_last(&mut self, dropped: &[u8]) {
        self.last.extend_from_slice(&dropped[dropped.len().saturating_sub(LAST_BYTES)..]);
        if self.last.len() > 2 * LAST_BYTES {
            self.last.drain(..self.last.len() - LAST_BYTES);
        }
    }

    /// Ends the stream: appends the end of the dropped output.
    fn close(&mut self, text: &mut String) {
        self.finish(text);
        let last = std::mem::take(&mut self.last);
        let last = &last[last.len().saturating_sub(LAST_BYTES)..];
        self.decode(last, text);
        self.finish(text);
    }

    fn finish(&mut self, text: &mut String) {
        if !std::mem::take(&mut self.partial).is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[test]
    fn a_piece_has_the_time_of_its_beginning() {
        let mut gathered = ScriptOutputBuffer::default();
        let later = |secs| NOW + Duration::from_secs(secs);
        gathered.add(ScriptStream::Out, b"one ", NOW);
        gathered.add(ScriptStream::Err, b"two", later(1));
        assert_eq!(gathered.next_chunk().expect("text").time, Some(NOW));
        gathered.add(ScriptStream::Out, b"three", later(2));
        assert_eq!(gathered.next_chunk().expect("text").time, Some(later(2)));
    }

    #[test]
    fn characters_survive_being_cut() {
        let mut gathered = ScriptOutputBuffer::default();
        for byte in "grün €\u{1F600}\n".as_bytes() {
            gathered.add(ScriptStream::Out, &[*byte], NOW);
        }
        gathered.add(ScriptStream::Err, b"\xff\xe2\x82", NOW);
        gathered.close();
        let chunk = gathered.next_chunk().expect("text");
        assert_eq!(
            chunk,
            LogChunk { offset: 0, text: "grün €\u{1F600}\n\u{fffd}\u{fffd}".to_owned(), time: Some(NOW) }
        );
        assert_eq!(gathered.next_chunk(), None);
        assert_eq!(gathered.offset, chunk.end());
    }

    #[test]
    fn each_stream_is_bounded_with_one_mark_and_keeps_its_tail() {
        let mut gathered = ScriptOutputBuffer::default();
        let piece = vec![b'x'; 1024 * 1024];
        for _ in 0..12 {
            gathered.add(ScriptStream::Out, &piece, NOW);
        }
        gathered.add(ScriptStream::Out, b"gone wrong\n", NOW);
        gathered.add(ScriptStream::Err, b"still here", NOW);
        gathered.close();
        let mut text = String::new();
        while let Some(chunk) = gathered.next_chunk() {
            assert!(chunk.text.len() <= LOG_BYTES_MAX);
            assert_eq!(chunk.offset, text.len() as u64);
            text.push_str(&chunk.text);
        }
        assert_eq!(text.matches("was dropped").count(), 1);
        let last = LAST_BYTES as u64 - "gone wrong\n".len() as u64;
        assert_eq!(text.matches('x').count() as u64, OUTPUT_BYTES_MAX + last);
        assert!(text.ends_with("xxgone wrong\n"), "{}", &text[text.len() - 100..]);
        assert!(text.contains("still here"));
        assert!(gathered.tail.ends_with("gone wrong\n") && gathered.tail.len() <= 2 * OUTPUT_TAIL_BYTES_MAX);

        // The same holds for bytes that are no UTF-8, each of which becomes several.
        for _ in 0..12 {
            gathered.add(ScriptStream::Err, &[0xff; 16 * 1024].repeat(64), NOW);
        }
        let kept = gathered.pending.len() as u64;
        assert!((OUTPUT_BYTES_MAX..OUTPUT_BYTES_MAX + 3 * 1024 * 1024).contains(&kept), "{kept}");
    }
}
