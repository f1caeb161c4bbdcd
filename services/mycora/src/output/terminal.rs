//! The one way to standard output and standard error.
//!
//! Scripts, strangers, labels and flow files are untrusted. On a terminal, text that would control it or deceive the
//! reader (escape sequences, control characters, marks of direction, characters without width) is shown instead of
//! obeyed, unless `--raw` was given. Pipes and files get every byte as it came.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::printable::{is_hidden, spelled};

use super::PrefixedLine;

/// True when everything goes to the terminal as it came.
static RAW: AtomicBool = AtomicBool::new(false);
static OUT: Mutex<HiddenCharFilter> = Mutex::new(HiddenCharFilter::new());
static ERR: Mutex<HiddenCharFilter> = Mutex::new(HiddenCharFilter::new());

const DIM: &str = "\x1b[2m";
const NOT_DIM: &str = "\x1b[22m";

/// One of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StandardStream {
    Out,
    Err,
}

/// Lets everything through to terminals as it came, from now on.
pub fn let_raw_through() {
    RAW.store(true, Ordering::Relaxed);
}

/// How many characters stand on a line of the terminal that standard output is; nothing elsewhere.
pub(super) fn columns() -> Option<usize> {
    console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
}

/// The colors of names, in turn. Red stays for what went wrong.
const COLORS: [console::Color; 5] = [
    console::Color::Cyan,
    console::Color::Green,
    console::Color::Yellow,
    console::Color::Magenta,
    console::Color::Blue,
];

/// A text of one line in the color of this number.
#[must_use]
pub fn colored(text: &str, color: usize) -> String {
    let style = console::Style::new().fg(COLORS[color % COLORS.len()]);
    style.force_styling(true).apply_to(drawable(text)).to_string()
}

/// A text of ours that is less important than what stands behind it.
#[must_use]
pub fn dimmed(text: &str) -> String {
    format!("{DIM}{text}{NOT_DIM}")
}

/// Returns true when standard output shows colors: it is a terminal, without `NO_COLOR` or `CLICOLOR=0`.
#[must_use]
pub fn has_colors() -> bool {
    StandardStream::Out.has_colors()
}

impl StandardStream {
    /// Writes lines of which the beginnings are ours: they are written as they are, what follows as by [`StandardStream::write`].
    pub(super) fn write_lines(self, lines: &[PrefixedLine]) -> io::Result<()> {
        let filters = self.filters();
        let mut all = Vec::new();
        for PrefixedLine { prefix, text } in lines {
            all.extend(prefix.as_bytes());
            if filters {
                all.extend(self.filter().pass(text, self.has_colors()).as_bytes());
            } else {
                all.extend(text);
            }
        }
        if all.is_empty() { Ok(()) } else { self.write_as_is(&all) }
    }

    /// Writes bytes: to a terminal what may be seen of them, elsewhere as they are.
    pub(super) fn write(self, bytes: &[u8]) -> io::Result<()> {
        if !self.filters() {
            return self.write_as_is(bytes);
        }
        let text = self.filter().pass(bytes, self.has_colors());
        self.write_as_is(text.as_bytes())
    }

    /// Writes what was held back since its rest might have come.
    pub(super) fn finish(self) -> io::Result<()> {
        let text = self.filter().rest(self.has_colors());
        if text.is_empty() { Ok(()) } else { self.write_as_is(text.as_bytes()) }
    }

    /// Returns true when hidden characters are made visible on the stream.
    fn filters(self) -> bool {
        let is_terminal = match self {
            Self::Out => io::stdout().is_terminal(),
            Self::Err => io::stderr().is_terminal(),
        };
        is_terminal && !RAW.load(Ordering::Relaxed)
    }

    fn filter(self) -> MutexGuard<'static, HiddenCharFilter> {
        let filter = match self {
            Self::Out => &OUT,
            Self::Err => &ERR,
        };
        filter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_colors(self) -> bool {
        match self {
            Self::Out => console::colors_enabled(),
            Self::Err => console::colors_enabled_stderr(),
        }
    }

    fn write_as_is(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Out => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Self::Err => io::stderr().lock().write_all(bytes),
        }
    }
}

/// Returns true if a question can be asked: somebody sees it, and can answer.
#[must_use]
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Text of one line that is drawn on standard error by other means than [`super::note`].
#[must_use]
pub fn drawable(text: &str) -> String {
    if RAW.load(Ordering::Relaxed) {
        return text.to_owned();
    }
    visible_line(text)
}

/// Text of one line with all its hidden characters spelled out, wherever it goes.
#[must_use]
pub fn visible_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            hidden if is_hidden(hidden) => shown.push_str(&spelled(hidden)),
            other => shown.push(other),
        }
    }
    shown
}

/// Makes hidden characters of a stream visible, also where a character is cut by the end of a piece.
#[derive(Debug)]
struct HiddenCharFilter {
    /// The beginning of a character, or a carriage return whose line feed may come.
    begun: Vec<u8>,
}

impl HiddenCharFilter {
    const fn new() -> Self {
        Self { begun: Vec::new() }
    }

    /// Returns what may be shown of a piece and of the bytes held back before it.
    fn pass(&mut self, bytes: &[u8], dim: bool) -> String {
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut shown = VisibleText { text: String::with_capacity(all.len()), dim, is_dim: false };
        let mut rest = &all[..];
        while !rest.is_empty() {
            let (text, bad) = match std::str::from_utf8(rest) {
                Ok(text) => (text, &rest[rest.len()..]),
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    let Some(length) = error.error_len() else {
                        shown.push(std::str::from_utf8(good).unwrap_or_default());
                        self.begun = bad.to_vec();
                        return shown.end();
                    };
                    rest = &bad[length..];
                    (std::str::from_utf8(good).unwrap_or_default(), &bad[..length])
                }
            };
            if bad.is_empty() {
                rest = bad;
                if let Some(before) = text.strip_suffix('\r') {
                    self.begun = b"\r".to_vec();
                    shown.push(before);
                    break;
                }
            }
            shown.push(text);
            shown.push_bytes(bad);
        }
        shown.end()
    }

    /// Returns the bytes that were held back, made visible.
    fn rest(&mut self, dim: bool) -> String {
        let mut shown = VisibleText { text: String::new(), dim, is_dim: false };
        shown.push_bytes(&std::mem::take(&mut self.begun));
        shown.end()
    }
}

/// Text for a terminal, as it grows.
struct VisibleText {
    text: String,
    /// True when spelled-out characters are dim.
    dim: bool,
    is_dim: bool,
}

impl VisibleText {
    fn push(&mut self, text: &str) {
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            let is_line_end = character == '\n' || character == '\r' && characters.peek() == Some(&'\n');
            if is_line_end || character == '\t' || !is_hidden(character) {
                self.turn(false);
                self.text.push(character);
            } else {
                self.turn(true);
                self.text.push_str(&spelled(character));
            }
        }
    }

    /// Bytes that are no text.
    fn push_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.turn(true);
            // A String takes everything.
            let _ = write!(self.text, "\\x{byte:02x}");
        }
    }

    fn turn(&mut self, dim: bool) {
        if self.dim && self.is_dim != dim {
            self.text.push_str(if dim { DIM } else { NOT_DIM });
            self.is_dim = dim;
        }
    }

    fn end(mut self) -> String {
        self.turn(false);
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(pieces: &[&[u8]]) -> String {
        let mut filter = HiddenCharFilter::new();
        let mut text: String = pieces.iter().map(|piece| filter.pass(piece, false)).collect();
        text.push_str(&filter.rest(false));
        text
    }

    #[test]
    fn what_steers_a_terminal_is_shown() {
        for (printed, shown) in [
            (&b"plain\ttext\n"[..], "plain\ttext\n"),
            (b"\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
            (b"\xc2\x9b2J", "\\x9b2J"),
            // One byte to a terminal that does not use UTF-8.
            (b"\x9b2J", "\\x9b2J"),
            (b"a\x08b\x7f", "a\\x08b\\x7f"),
            ("user\u{202e}txt.exe\u{2069}".as_bytes(), "user\\u{202e}txt.exe\\u{2069}"),
            ("a\u{200b}b\u{2028}c".as_bytes(), "a\\u{200b}b\\u{2028}c"),
            (b"50%\r100%\r\n", "50%\\x0d100%\r\n"),
            ("größer 日本語 🦀".as_bytes(), "größer 日本語 🦀"),
            (b"\xff\xfe", "\\xff\\xfe"),
        ] {
            assert_eq!(passed(&[printed]), shown);
            // However it is cut.
            let single: Vec<&[u8]> = printed.chunks(1).collect();
            assert_eq!(passed(&single), shown);
        }
        assert_eq!(passed(&[b"end\r"]), "end\\x0d");
        assert_eq!(passed(&[b"end\xe2\x82"]), "end\\xe2\\x82");
    }

    #[test]
    fn what_is_spelled_out_is_dim() {
        let mut filter = HiddenCharFilter::new();
        assert_eq!(filter.pass(b"a\x1b\x07b", true), "a\x1b[2m\\x1b\\x07\x1b[22mb");
    }

    #[test]
    fn a_line_stays_one() {
        assert_eq!(visible_line("a\nb\t\u{1b}\u{2066}"), "a\\nb\\t\\x1b\\u{2066}");
    }
}
