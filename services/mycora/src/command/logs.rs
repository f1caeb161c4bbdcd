//! `mycora flow logs`: what jobs print, each byte once, also when the stream breaks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use proto::v1;
use rpc::Retry;

use super::Session;
use crate::failure::{CallError, Failure};
use crate::output::{self, Format, json};

/// Waits between streams that broke.
const WAIT: Duration = Duration::from_millis(500);
/// A coordinator that is away for longer is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What `flow logs` takes.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The flow's number
    pub id: u32,
    /// Go on until the flow has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Only this job, and without its name before each line
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

pub(super) async fn run(session: &Session, args: &LogsArgs) -> Result<(), Failure> {
    let request = v1::StreamFlowLogsRequest {
        context_id: session.context()?,
        flow_id: args.id,
        node: args.node.clone().unwrap_or_default(),
        follow: args.follow,
    };
    let mut printer = match (session.global.output, &args.node) {
        (Format::Json, _) => Printer::Json { first: true },
        (Format::Table, Some(_)) => Printer::Raw,
        (Format::Table, None) => Printer::Prefixed(Lines::default()),
    };
    let mut seen = Seen::default();
    let mut heard = Instant::now();
    while let Err(error) = one_stream(session, &request, &mut seen, &mut heard, &mut printer).await? {
        let again = matches!(error.retry, Retry::Again { .. } | Retry::Reread);
        if !again || heard.elapsed() >= PATIENCE || !args.follow {
            return Err(error.into());
        }
        tokio::time::sleep(WAIT).await;
    }
    printer.end()
}

/// Prints one stream. The outer failure is that of printing.
async fn one_stream(
    session: &Session,
    request: &v1::StreamFlowLogsRequest,
    seen: &mut Seen,
    heard: &mut Instant,
    printer: &mut Printer,
) -> Result<Result<(), CallError>, Failure> {
    let mut pieces = match session.clients.stream_logs(request.clone()).await {
        Ok(pieces) => pieces,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        match pieces.next().await {
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
            Ok(Some(piece)) => {
                *heard = Instant::now();
                let gap = seen.gap_before(&piece);
                if let Some(piece) = seen.new_part(piece) {
                    printer.piece(&if gap == 0 { piece } else { printer.after_gap(piece, gap) })?;
                }
            }
        }
    }
}

/// How far each attempt was printed, so that a stream that begins anew repeats nothing.
#[derive(Debug, Default)]
struct Seen(BTreeMap<(String, u32), u64>);

impl Seen {
    /// How many bytes between what was printed and a piece are not kept any more.
    fn gap_before(&self, piece: &v1::StreamFlowLogsResponse) -> u64 {
        let seen = self.0.get(&(piece.node.clone(), piece.attempt)).copied().unwrap_or_default();
        piece.offset.saturating_sub(seen)
    }

    /// What of a piece was not printed yet.
    fn new_part(&mut self, mut piece: v1::StreamFlowLogsResponse) -> Option<v1::StreamFlowLogsResponse> {
        let end = piece.offset + piece.data.len() as u64;
        let seen = self.0.entry((piece.node.clone(), piece.attempt)).or_default();
        if end <= *seen {
            return None;
        }
        if piece.offset < *seen {
            let known = usize::try_from(*seen - piece.offset).unwrap_or(usize::MAX);
            piece.data = piece.data.split_off(known.min(piece.data.len()));
            piece.offset = *seen;
        }
        *seen = end;
        Some(piece)
    }
}

enum Printer {
    /// The bytes as they are.
    Raw,
    /// Whole lines, each with its job's name before it.
    Prefixed(Lines),
    /// One document: an array of pieces.
    Json { first: bool },
}

impl Printer {
    fn piece(&mut self, piece: &v1::StreamFlowLogsResponse) -> Result<(), Failure> {
        match self {
            Self::Raw => output::print_bytes(&piece.data),
            Self::Prefixed(lines) => output::print_bytes(&lines.take(piece)),
            Self::Json { first } => {
                let separator = if std::mem::take(first) { "[\n" } else { ",\n" };
                let text = serde_json::to_string(&json::of(piece)).map_err(|error| {
                    Failure::Failed(format!("the log cannot be written as JSON: {error}"))
                })?;
                output::print(&format!("{separator}{text}"))
            }
        }
    }

    /// Says that something is missing. For people the rest of a line whose beginning is missing goes too.
    fn after_gap(&self, mut piece: v1::StreamFlowLogsResponse, gap: u64) -> v1::StreamFlowLogsResponse {
        output::note(&format!(
            "{}: {gap} bytes of attempt {} are not kept any more",
            piece.node, piece.attempt
        ));
        let line_end = piece.data.iter().position(|byte| *byte == b'\n');
        if let (Self::Raw | Self::Prefixed(_), Some(end)) = (self, line_end) {
            piece.data = piece.data.split_off(end + 1);
            piece.offset += end as u64 + 1;
        }
        piece
    }

    fn end(self) -> Result<(), Failure> {
        match self {
            Self::Raw => Ok(()),
            Self::Prefixed(lines) => output::print_bytes(&lines.rest()),
            Self::Json { first: true } => output::print("[]\n"),
            Self::Json { first: false } => output::print("\n]\n"),
        }
    }
}

/// Puts pieces together to lines. Lines of different jobs never mix.
#[derive(Debug, Default)]
struct Lines(BTreeMap<(String, u32), Vec<u8>>);

impl Lines {
    /// The lines that a piece completes.
    fn take(&mut self, piece: &v1::StreamFlowLogsResponse) -> Vec<u8> {
        let begun = self.0.entry((piece.node.clone(), piece.attempt)).or_default();
        begun.extend(&piece.data);
        let complete = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut text = Vec::new();
        for line in begun[..complete].split_inclusive(|byte| *byte == b'\n') {
            prefixed(&mut text, &piece.node, line);
        }
        begun.drain(..complete);
        text
    }

    /// Lines that nothing completed.
    fn rest(self) -> Vec<u8> {
        let mut text = Vec::new();
        for ((node, _), line) in self.0.into_iter().filter(|(_, line)| !line.is_empty()) {
            prefixed(&mut text, &node, &line);
            text.push(b'\n');
        }
        text
    }
}

fn prefixed(text: &mut Vec<u8>, node: &str, line: &[u8]) {
    text.extend(node.as_bytes());
    text.extend(b" | ");
    text.extend(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(node: &str, offset: u64, data: &str) -> v1::StreamFlowLogsResponse {
        v1::StreamFlowLogsResponse { node: node.into(), attempt: 1, offset, data: data.to_owned().into() }
    }

    #[test]
    fn what_was_printed_is_not_printed_again() {
        let mut seen = Seen::default();
        let mut new =
            |piece| seen.new_part(piece).map(|p| (p.offset, String::from_utf8_lossy(&p.data).into_owned()));
        assert_eq!(new(piece("a", 0, "abc")), Some((0, "abc".into())));
        assert_eq!(new(piece("a", 0, "abc")), None);
        assert_eq!(new(piece("a", 0, "abcde")), Some((3, "de".into())));
        assert_eq!(new(piece("a", 9, "x")), Some((9, "x".into())), "a gap is what is not kept");
        assert_eq!(new(piece("b", 0, "b")), Some((0, "b".into())));
    }

    #[test]
    fn lines_of_different_jobs_never_mix() {
        let mut lines = Lines::default();
        let mut text = lines.take(&piece("a", 0, "one\ntw"));
        text.extend(lines.take(&piece("b", 0, "x\n")));
        text.extend(lines.take(&piece("a", 6, "o\nthree")));
        text.extend(lines.rest());
        assert_eq!(String::from_utf8_lossy(&text), "a | one\nb | x\na | two\na | three\n");
    }
}
