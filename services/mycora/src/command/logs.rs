//! `mycora flow logs`: what jobs print, each byte once, also when the stream breaks. [`lines`]: what people are shown of it.

mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use clap::Args;
use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;
use rpc::RetryAdvice;
use tonic::Code;

use self::lines::{LineAssembler, LinePrefixOptions, LogTailBuffer};
use super::outage_notice::OutageNotice;
use super::{CliSession, values, watch};
use crate::clients::Clients;
use crate::failure::{ApiCallError, CliError};
use crate::output::{self, OutputFormat, json, labels};

/// Waits between streams that broke.
const WAIT: Duration = Duration::from_millis(500);
/// A coordinator that did answer and is away for longer is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
Examples:
  mycora flow logs 3 --follow
  mycora flow logs 3 --timestamps --since 10m
  mycora flow logs 3 merge --attempt 2 --offset 4096

--timestamps prefixes each line with the time at which its beginning was printed, in UTC by the clock of the machine that ran it, to half a second; `-` if it is not known, as for attempts that ran before these times were kept. With --output json or yaml each piece has them anyway, as `times`.

With --output json or yaml the answer is one document, a list of pieces; with --follow each piece is a document of its own (JSON: a line), so that it can be read at once. `data` is base64.

The first 10 MiB of an attempt's standard output and standard error are recorded. The coordinator keeps the last 64 KiB of them, the machine that ran the attempt keeps everything for a while (7 days, unless configured otherwise or short of space). Output before the tail is read from that machine; if that fails, the missing part is reported on standard error with the reason (in JSON and YAML as a piece with `gap`), and the rest follows. With --tail no machine is contacted.";

/// Arguments of `flow logs`.
#[derive(Debug, Args)]
pub struct FlowLogsArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Only this job, and without its name before each line
    #[arg(value_name = "JOB")]
    pub node: Option<String>,
    /// Follow until the flow has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Only this attempt of the job
    #[arg(long, value_name = "N", value_parser = values::id)]
    pub attempt: Option<u32>,
    /// Start at this byte of the attempt's output
    #[arg(long, value_name = "BYTE")]
    pub offset: Option<u64>,
    /// Only so many of the last lines of each attempt; without a number all that the coordinator keeps, the last 64 KiB.
    /// With --follow what comes afterwards as well
    #[arg(long, value_name = "LINES", num_args = 0..=1, default_missing_value = "0")]
    pub tail: Option<usize>,
    /// With the time before each line, as 2026-11-21T08:00:00.000Z
    #[arg(long, short)]
    pub timestamps: bool,
    /// Only what was printed since: a time as 2026-11-21T08:00:00Z, a day (UTC), or how long ago as 90s, 15m, 2h or 7d
    #[arg(long, value_name = "TIME", value_parser = values::moment, conflicts_with = "offset")]
    pub since: Option<values::PointInTime>,
    /// Same as JOB.
    #[arg(long = "node", value_name = "NAME", hide = true, conflicts_with = "node")]
    pub named: Option<String>,
}

impl FlowLogsArgs {
    fn request(&self, context_id: u32) -> Result<v1::StreamFlowLogsRequest, CliError> {
        let node = self.node.as_ref().or(self.named.as_ref());
        let id = self.id;
        let context = format!("--context {context_id}");
        if self.attempt.is_some() && node.is_none() {
            let text =
                format!("--attempt needs a job, as in `mycora flow logs {id} JOB --attempt 1 {context}`");
            return Err(CliError::Invalid(text));
        }
        if self.offset.is_some() && self.attempt.is_none() {
            let text = format!(
                "--offset needs an attempt, as in `mycora flow logs {id} JOB --attempt 1 --offset 0 {context}`"
            );
            return Err(CliError::Invalid(text));
        }
        Ok(v1::StreamFlowLogsRequest {
            context_id,
            flow_id: id,
            node: node.cloned().unwrap_or_default(),
            follow: self.follow,
            attempt: self.attempt.unwrap_or_default(),
            offset: self.offset.unwrap_or_default(),
            tail: self.tail.is_some(),
            since: self.since.map(|since| wire_time::to_wire(since.from(Timestamp::now()))),
        })
    }
}

pub(super) async fn run(session: &CliSession, args: &FlowLogsArgs) -> Result<(), CliError> {
    let mut request = args.request(session.context()?)?;
    let lines = args.tail.filter(|lines| *lines > 0);
    if lines.is_some() && session.global.output != OutputFormat::Table {
        let text = "--tail LINES is for people; with --output json or yaml give --tail alone, or --attempt and --offset";
        return Err(CliError::Invalid(text.to_owned()));
    }
    let marks = LinePrefixOptions { names: request.node.is_empty(), timestamps: args.timestamps };
    let mut printer = match session.global.output {
        OutputFormat::Table if marks.is_any() => LogPrinter::Marked(LineAssembler::new(marks)),
        OutputFormat::Table => LogPrinter::Raw,
        format if args.follow => LogPrinter::Documents(format),
        format => LogPrinter::Document { format, first: true },
    };
    if let Some(lines) = lines {
        printer = LogPrinter::Last(LogTailBuffer::new(lines), Box::new(printer));
        request.follow = false;
    }
    let mut reader = LogReader::new(&session.clients, request, printer);
    reader.absence = (!session.global.quiet).then(OutageNotice::default);
    let result = tokio::select! {
        result = reader.all(args.follow) => result,
        pressed = tokio::signal::ctrl_c() => Err(match pressed {
            Ok(()) => CliError::Interrupted(reader.way_on()),
            Err(error) => CliError::Failed(format!("cannot wait for signals: {error}")),
        }),
    };
    let LogReader { request, printer, seen, .. } = reader;
    let nothing = seen.end_of(&request.node, request.attempt) == request.offset;
    // Also what was begun is ended, so that a program can read it.
    printer.end()?;
    result?;
    if nothing && request.attempt > 0 { attempt_exists(session, &request).await } else { Ok(()) }
}

/// An attempt that printed nothing and one that there is not look the same in a log.
async fn attempt_exists(session: &CliSession, request: &v1::StreamFlowLogsRequest) -> Result<(), CliError> {
    let v1::StreamFlowLogsRequest { context_id, flow_id, node, attempt, .. } = request;
    let ask = v1::ExplainNodeRequest { context_id: *context_id, flow_id: *flow_id, node: node.clone() };
    let attempts = session.clients.explain_node(&ask).await?.node.map_or(0, |node| node.attempt);
    if *attempt <= attempts {
        return Ok(());
    }
    let all = labels::count(attempts as usize, "attempt", "attempts");
    Err(CliError::Failed(format!("`{node}` of flow {flow_id} has no attempt {attempt}; it has {all}")))
}

/// Reads what jobs print, over as many streams as it takes.
pub(super) struct LogReader<'a> {
    clients: &'a Clients,
    request: v1::StreamFlowLogsRequest,
    seen: PrintedOffsets,
    last_response: Instant,
    /// True once the coordinator has answered at all.
    connected: bool,
    /// `None` if another reader reports outages of the coordinator, or none shall be reported.
    absence: Option<OutageNotice>,
    printer: LogPrinter,
    /// Attempts whose last line is not whole, since something is missing.
    broken: BTreeSet<(String, u32)>,
}

impl<'a> LogReader<'a> {
    pub(super) fn new(clients: &'a Clients, request: v1::StreamFlowLogsRequest, printer: LogPrinter) -> Self {
        let mut seen = PrintedOffsets::default();
        if request.offset > 0 {
            // Output before the offset was not requested.
            seen.0.insert((request.node.clone(), request.attempt), request.offset);
        }
        let (last_response, broken) = (Instant::now(), BTreeSet::new());
        Self { clients, request, seen, last_response, connected: false, absence: None, printer, broken }
    }

    /// Prints all there is; what comes afterwards too, when it `follows`. Cancel safe as [`LogReader::until_end`].
    async fn all(&mut self, follows: bool) -> Result<(), CliError> {
        self.until_end().await?;
        let lines = match std::mem::replace(&mut self.printer, LogPrinter::Nowhere) {
            LogPrinter::Last(lines, then) => {
                self.printer = *then;
                lines
            }
            printer => {
                self.printer = printer;
                return Ok(());
            }
        };
        for piece in lines.pieces() {
            self.printer.piece(&piece)?;
        }
        if follows {
            self.request.follow = true;
            self.until_end().await?;
        }
        Ok(())
    }

    /// Prints until there is no more. Cancel safe: [`LogReader::way_on`] knows how far it came.
    pub(super) async fn until_end(&mut self) -> Result<(), CliError> {
        while let Err(error) = self.one_stream().await? {
            let again = matches!(error.retry, RetryAdvice::Again { .. } | RetryAdvice::Reread)
                || matches!(error.view.code, Code::ResourceExhausted | Code::OutOfRange);
            let patience = if self.connected { PATIENCE } else { watch::PATIENCE_FIRST };
            if !again || self.last_response.elapsed() >= patience || !self.request.follow {
                return Err(error.into());
            }
            let away = self.absence.as_mut().filter(|_| self.connected);
            if let Some(line) = away.and_then(|absence| absence.on_failure(&error, PATIENCE)) {
                output::note(&line);
            }
            tokio::time::sleep(WAIT).await;
        }
        Ok(())
    }

    /// Prints one stream. The outer failure is that of printing.
    async fn one_stream(&mut self) -> Result<Result<(), ApiCallError>, CliError> {
        let mut request = self.request.clone();
        if request.attempt > 0 {
            request.offset = self.seen.end_of(&request.node, request.attempt);
        }
        let mut pieces = match self.clients.stream_logs(request).await {
            Ok(pieces) => pieces,
            Err(error) => return Ok(Err(error)),
        };
        (self.last_response, self.connected) = (Instant::now(), true);
        loop {
            match pieces.next().await {
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
                Ok(Some(piece)) => {
                    self.last_response = Instant::now();
                    if let Some(line) = self.absence.as_mut().and_then(OutageNotice::on_response) {
                        output::note(line);
                    }
                    self.print(piece)?;
                }
            }
        }
    }

    /// Prints what of a piece was not printed yet, or that there is none.
    fn print(&mut self, piece: v1::StreamFlowLogsResponse) -> Result<(), CliError> {
        // A sign of life.
        if piece.node.is_empty() {
            return Ok(());
        }
        // Output from before `since` was not requested.
        let jumped = if self.request.since.is_some() { 0 } else { self.seen.gap_before(&piece) };
        let Some(mut piece) = self.seen.new_part(piece) else { return Ok(()) };
        let attempt = (piece.node.clone(), piece.attempt);
        if jumped > 0 {
            // Older coordinators report no gaps.
            let (node, attempt) = &attempt;
            output::note(&format!("{node}: {jumped} bytes of attempt {attempt} are not kept any more"));
        }
        if jumped > 0 || piece.gap.is_some() {
            self.printer.break_off(&attempt)?;
            self.broken.insert(attempt.clone());
        }
        if piece.gap.is_some() {
            return self.printer.gap(&piece);
        }
        if self.broken.remove(&attempt) {
            piece = self.printer.whole_lines_of(piece);
        }
        self.printer.piece(&piece)
    }

    /// How to read on after an interruption.
    fn way_on(&self) -> String {
        let v1::StreamFlowLogsRequest { context_id, flow_id, node, follow, .. } = &self.request;
        if !follow {
            return "interrupted".to_owned();
        }
        let place = match self.seen.0.last_key_value() {
            Some(((name, attempt), offset)) if name == node => {
                format!(" {node} --attempt {attempt} --offset {offset}")
            }
            _ if node.is_empty() => String::new(),
            _ => format!(" {node}"),
        };
        format!(
            "flow {flow_id} continues; read on with `mycora flow logs {flow_id}{place} -f --context {context_id}`"
        )
    }

    /// Ends what was begun.
    pub(super) fn end(self) -> Result<(), CliError> {
        self.printer.end()
    }
}

/// How far each attempt was printed, so that a reopened stream repeats nothing.
#[derive(Debug, Default)]
struct PrintedOffsets(BTreeMap<(String, u32), u64>);

impl PrintedOffsets {
    /// Number of bytes between the printed part and a piece that are no longer kept.
    fn gap_before(&self, piece: &v1::StreamFlowLogsResponse) -> u64 {
        piece.offset.saturating_sub(self.end_of(&piece.node, piece.attempt))
    }

    fn end_of(&self, node: &str, attempt: u32) -> u64 {
        self.0.get(&(node.to_owned(), attempt)).copied().unwrap_or_default()
    }

    /// Returns the part of a piece that was not printed yet.
    fn new_part(&mut self, mut piece: v1::StreamFlowLogsResponse) -> Option<v1::StreamFlowLogsResponse> {
        let end = piece.gap.as_ref().map_or(piece.offset + piece.data.len() as u64, |gap| gap.end);
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

/// Where what is printed goes, and in which form.
pub(super) enum LogPrinter {
    /// The bytes as they are.
    Raw,
    /// The bytes as they are, on standard error, beside the answer.
    Aside,
    /// Nowhere.
    Nowhere,
    /// Whole lines, each with its job's name or its time before it.
    Marked(LineAssembler),
    /// One document: a list of pieces.
    Document { format: OutputFormat, first: bool },
    /// A document for each piece.
    Documents(OutputFormat),
    /// Holds everything back until the end, then prints the last lines with the inner printer.
    Last(LogTailBuffer, Box<LogPrinter>),
}

impl LogPrinter {
    fn piece(&mut self, piece: &v1::StreamFlowLogsResponse) -> Result<(), CliError> {
        match self {
            Self::Raw => output::print_bytes(&piece.data),
            Self::Aside => {
                output::note_bytes(&piece.data);
                Ok(())
            }
            Self::Nowhere => Ok(()),
            Self::Last(lines, _) => {
                lines.take(piece);
                Ok(())
            }
            Self::Marked(lines) => output::print_lines(&lines.take(piece)),
            Self::Document { format, first } => {
                output::print_item(*format, std::mem::take(first), &json::of(piece))
            }
            Self::Documents(format) => output::print_stream_item(*format, &json::of(piece)),
        }
    }

    /// Reports what is missing, and why.
    fn gap(&mut self, piece: &v1::StreamFlowLogsResponse) -> Result<(), CliError> {
        let v1::StreamFlowLogsResponse { node, attempt, offset, data: _, gap, times: _ } = piece;
        let Some(v1::LogGap { end, detail, .. }) = gap else { return Ok(()) };
        match self {
            // Output before the last lines is not wanted.
            Self::Nowhere | Self::Last(..) => Ok(()),
            Self::Raw | Self::Aside | Self::Marked(_) => {
                output::note(&format!(
                    "{node}: bytes {offset} to {end} of attempt {attempt} are not shown: {detail}"
                ));
                Ok(())
            }
            Self::Document { .. } | Self::Documents(_) => self.piece(piece),
        }
    }

    /// Ends the line that an attempt has begun: its rest is missing.
    fn break_off(&mut self, attempt: &(String, u32)) -> Result<(), CliError> {
        match self {
            Self::Marked(lines) => output::print_lines(lines.break_off(attempt).as_slice()),
            _ => Ok(()),
        }
    }

    /// For people the rest of a line whose beginning is missing goes too.
    fn whole_lines_of(&self, mut piece: v1::StreamFlowLogsResponse) -> v1::StreamFlowLogsResponse {
        let line_end = piece.data.iter().position(|byte| *byte == b'\n');
        if let (Self::Raw | Self::Aside | Self::Marked(_) | Self::Last(..), Some(end)) = (self, line_end) {
            piece.data = piece.data.split_off(end + 1);
            piece.offset += end as u64 + 1;
        }
        piece
    }

    fn end(self) -> Result<(), CliError> {
        match self {
            Self::Raw | Self::Aside | Self::Nowhere | Self::Documents(_) | Self::Last(..) => Ok(()),
            Self::Marked(lines) => output::print_lines(&lines.rest()),
            Self::Document { format, first } => output::end_items(format, first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(node: &str, offset: u64, data: &str) -> v1::StreamFlowLogsResponse {
        let (node, data) = (node.into(), data.to_owned().into());
        v1::StreamFlowLogsResponse { node, attempt: 1, offset, data, ..Default::default() }
    }

    #[test]
    fn a_gap_counts_as_seen() {
        let mut seen = PrintedOffsets::default();
        let gap = |offset, end| v1::StreamFlowLogsResponse {
            gap: Some(v1::LogGap { end, ..Default::default() }),
            ..piece("a", offset, "")
        };
        let mut new = |piece| seen.new_part(piece).map(|piece| piece.offset);
        assert_eq!(new(piece("a", 0, "abc")), Some(0));
        assert_eq!(new(gap(0, 9)), Some(3), "only what was not printed is missing");
        assert_eq!(new(gap(0, 9)), None);
        assert_eq!(new(piece("a", 3, "defghi")), None, "it was told as missing");
        assert_eq!(new(piece("a", 9, "jkl")), Some(9));
    }

    #[test]
    fn the_rest_of_a_line_is_left_out_for_people_alone() {
        let rest = LogPrinter::Raw.whole_lines_of(piece("a", 50, "f a line\nnext"));
        assert_eq!((rest.offset, &rest.data[..]), (59, &b"next"[..]));
        let rest = LogPrinter::Documents(OutputFormat::Json).whole_lines_of(piece("a", 50, "f a line\nnext"));
        assert_eq!(rest.offset, 50, "programs are given every byte");
    }

    #[test]
    fn what_was_printed_is_not_printed_again() {
        let mut seen = PrintedOffsets::default();
        let mut new =
            |piece| seen.new_part(piece).map(|p| (p.offset, String::from_utf8_lossy(&p.data).into_owned()));
        assert_eq!(new(piece("a", 0, "abc")), Some((0, "abc".into())));
        assert_eq!(new(piece("a", 0, "abc")), None);
        assert_eq!(new(piece("a", 0, "abcde")), Some((3, "de".into())));
        assert_eq!(new(piece("a", 9, "x")), Some((9, "x".into())), "a gap is what is not kept");
        assert_eq!(new(piece("b", 0, "b")), Some((0, "b".into())));
    }
}
