//! Pieces of output put together to lines, and what stands before each line.

use std::collections::BTreeMap;

use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;

use crate::output::terminal::{colored, dimmed, drawable, has_colors};
use crate::output::{PrefixedLine, time};

/// Width of a time as it is written, in characters.
const MOMENT_WIDTH: usize = 24;

/// Prefixes to print before each line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LinePrefixOptions {
    /// The job's name.
    pub(super) names: bool,
    /// When the line was printed.
    pub(super) timestamps: bool,
}

impl LinePrefixOptions {
    /// Returns true when lines get any prefix.
    pub(super) const fn is_any(self) -> bool {
        self.names || self.timestamps
    }
}

/// Puts pieces together to lines. Lines of different jobs never mix.
#[derive(Debug, Default)]
pub(crate) struct LineAssembler {
    marks: LinePrefixOptions,
    colored: bool,
    begun: BTreeMap<(String, u32), PartialLine>,
    /// Which job has which color.
    colors: BTreeMap<String, usize>,
}

/// A line that is not complete.
#[derive(Debug, Default)]
struct PartialLine {
    text: Vec<u8>,
    time: Option<Timestamp>,
}

impl LineAssembler {
    /// Lines with these marks, as standard output shows them.
    pub(super) fn new(marks: LinePrefixOptions) -> Self {
        Self { marks, colored: has_colors(), ..Self::default() }
    }

    /// The lines that a piece completes.
    pub(super) fn take(&mut self, piece: &v1::StreamFlowLogsResponse) -> Vec<PrefixedLine> {
        let mut begun = self.begun.remove(&(piece.node.clone(), piece.attempt)).unwrap_or_default();
        let (mut offset, mut lines) = (piece.offset, Vec::new());
        for part in piece.data.split_inclusive(|byte| *byte == b'\n') {
            if begun.text.is_empty() {
                begun.time = time_at(&piece.times, offset);
            }
            begun.text.extend(part);
            offset += part.len() as u64;
            if part.ends_with(b"\n") {
                lines.push(self.line(&piece.node, std::mem::take(&mut begun)));
            }
        }
        if !begun.text.is_empty() {
            self.begun.insert((piece.node.clone(), piece.attempt), begun);
        }
        lines
    }

    /// Lines that nothing completed.
    pub(super) fn rest(mut self) -> Vec<PrefixedLine> {
        let attempts: Vec<_> = self.begun.keys().cloned().collect();
        attempts.iter().filter_map(|attempt| self.break_off(attempt)).collect()
    }

    /// The line that an attempt has begun and will not complete.
    pub(super) fn break_off(&mut self, attempt: &(String, u32)) -> Option<PrefixedLine> {
        let mut begun = self.begun.remove(attempt)?;
        begun.text.push(b'\n');
        Some(self.line(&attempt.0, begun))
    }

    fn line(&mut self, job: &str, PartialLine { text, time }: PartialLine) -> PrefixedLine {
        let mut prefix = String::new();
        if self.marks.timestamps {
            let moment = time.map_or_else(|| "-".to_owned(), time::exact);
            let moment = format!("{moment:MOMENT_WIDTH$}");
            prefix.push_str(&if self.colored { dimmed(&moment) } else { moment });
            prefix.push(' ');
        }
        if self.marks.names {
            let name = format!("{job} |");
            let next = self.colors.len();
            let color = *self.colors.entry(job.to_owned()).or_insert(next);
            prefix.push_str(&if self.colored { colored(&name, color) } else { drawable(&name) });
            prefix.push(' ');
        }
        PrefixedLine { prefix, text }
    }
}

/// When the byte at `offset` was printed, where that is known.
fn time_at(times: &[v1::LogTime], offset: u64) -> Option<Timestamp> {
    let before = times.partition_point(|time| time.offset <= offset).checked_sub(1)?;
    times[before].time.map(wire_time::from_wire)
}

/// The last lines of each attempt.
#[derive(Debug)]
pub(crate) struct LogTailBuffer {
    most: usize,
    attempts: BTreeMap<(String, u32), AttemptTail>,
}

/// Kept end of an attempt's output, and when it was printed, by offset in the kept bytes.
#[derive(Debug, Default)]
struct AttemptTail {
    data: Vec<u8>,
    times: Vec<v1::LogTime>,
}

impl LogTailBuffer {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, attempts: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, piece: &v1::StreamFlowLogsResponse) {
        let AttemptTail { data, times } =
            self.attempts.entry((piece.node.clone(), piece.attempt)).or_default();
        let begin = data.len() as u64;
        times.extend(piece.times.iter().map(|held| v1::LogTime {
            offset: begin + held.offset.saturating_sub(piece.offset),
            time: held.time,
        }));
        data.extend(&piece.data);
        // The line break at the very end begins no line.
        let breaks = data.iter().enumerate().rev().skip(1).filter(|(_, byte)| **byte == b'\n');
        let before = breaks.map(|(at, _)| at + 1).nth(self.most.saturating_sub(1));
        if let Some(gone) = before {
            data.drain(..gone);
            let gone = gone as u64;
            // The last one that held before the rest goes on to hold.
            let over = times.partition_point(|held| held.offset <= gone).saturating_sub(1);
            times.drain(..over);
            times.iter_mut().for_each(|held| held.offset = held.offset.saturating_sub(gone));
        }
    }

    /// Each attempt's, as one piece.
    pub(super) fn pieces(self) -> impl Iterator<Item = v1::StreamFlowLogsResponse> {
        self.attempts.into_iter().map(|((node, attempt), AttemptTail { data, times })| {
            v1::StreamFlowLogsResponse { node, attempt, data: data.into(), times, ..Default::default() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(node: &str, offset: u64, data: &str) -> v1::StreamFlowLogsResponse {
        let (node, data) = (node.into(), data.to_owned().into());
        v1::StreamFlowLogsResponse { node, attempt: 1, offset, data, ..Default::default() }
    }

    /// Builds a piece whose bytes at these offsets were printed at these seconds of a minute.
    fn timed(offset: u64, data: &str, times: &[(u64, u64)]) -> v1::StreamFlowLogsResponse {
        let at =
            |secs: u64| Some(wire_time::to_wire(Timestamp::from_millis(1_800_000_000_000 + secs * 1000)));
        let times = times.iter().map(|&(offset, secs)| v1::LogTime { offset, time: at(secs) }).collect();
        v1::StreamFlowLogsResponse { times, ..piece("a", offset, data) }
    }

    fn text(lines: impl IntoIterator<Item = PrefixedLine>) -> String {
        let all: Vec<u8> =
            lines.into_iter().flat_map(|line| [line.prefix.into_bytes(), line.text].concat()).collect();
        String::from_utf8_lossy(&all).into_owned()
    }

    fn named() -> LineAssembler {
        LineAssembler {
            marks: LinePrefixOptions { names: true, timestamps: false },
            ..LineAssembler::default()
        }
    }

    #[test]
    fn the_last_lines_of_each_attempt_are_kept() {
        let mut last = LogTailBuffer::new(2);
        for (node, offset, data) in [("a", 0, "one\ntwo\nth"), ("b", 0, "x\n"), ("a", 11, "ree\nfour\nfi")] {
            last.take(&piece(node, offset, data));
        }
        let texts: Vec<_> =
            last.pieces().map(|piece| String::from_utf8_lossy(&piece.data).into_owned()).collect();
        assert_eq!(texts, ["four\nfi", "x\n"]);
        let mut last = LogTailBuffer::new(2);
        last.take(&piece("a", 0, "one\ntwo\nthree\n"));
        assert_eq!(last.pieces().next().expect("one").data, &b"two\nthree\n"[..]);
    }

    #[test]
    fn a_line_that_goes_into_a_gap_is_ended() {
        let mut lines = named();
        let mut all = lines.take(&piece("a", 0, "one\ntw"));
        all.extend(lines.break_off(&("a".to_owned(), 1)));
        all.extend(lines.break_off(&("a".to_owned(), 1)));
        all.extend(lines.take(&piece("a", 99, "three\n")));
        assert_eq!(text(all), "a | one\na | tw\na | three\n");
    }

    #[test]
    fn lines_of_different_jobs_never_mix() {
        let mut lines = named();
        let mut all = lines.take(&piece("a", 0, "one\ntw"));
        all.extend(lines.take(&piece("b", 0, "x\n")));
        all.extend(lines.take(&piece("a", 6, "o\nthree")));
        all.extend(lines.rest());
        assert_eq!(text(all), "a | one\nb | x\na | two\na | three\n");
    }

    #[test]
    fn each_line_has_the_time_of_its_beginning() {
        let stamped = || LineAssembler {
            marks: LinePrefixOptions { names: false, timestamps: true },
            ..LineAssembler::default()
        };
        let mut lines = stamped();
        let mut all = lines.take(&timed(0, "one\ntw", &[(2, 0), (4, 1)]));
        all.extend(lines.take(&timed(6, "o\nthree\n", &[(6, 5), (8, 7)])));
        let unknown = format!("{:24}", "-");
        let at = |secs: u64| format!("2027-01-15T08:00:0{secs}.000Z");
        assert_eq!(text(all), format!("{unknown} one\n{} two\n{} three\n", at(1), at(7)));
        // Also of the last lines alone.
        let mut last = LogTailBuffer::new(2);
        last.take(&timed(100, "one\ntwo\nth", &[(100, 0), (104, 1), (105, 2), (108, 3)]));
        last.take(&timed(110, "ree\nfour\n", &[(110, 4), (114, 5)]));
        let all: Vec<PrefixedLine> = last.pieces().flat_map(|piece| stamped().take(&piece)).collect();
        assert_eq!(text(all), format!("{} three\n{} four\n", at(3), at(5)));
    }

    #[test]
    fn each_job_has_a_color_of_its_own_where_there_are_colors() {
        let mut lines = LineAssembler { colored: true, ..named() };
        let mut all = lines.take(&piece("a", 0, "one\n"));
        all.extend(lines.take(&piece("b", 0, "two\n")));
        all.extend(lines.take(&piece("a", 4, "three\n")));
        let shown = text(all);
        let (cyan, green) = ("\x1b[36ma |\x1b[0m", "\x1b[32mb |\x1b[0m");
        assert_eq!(shown, format!("{cyan} one\n{green} two\n{cyan} three\n"));
    }
}
