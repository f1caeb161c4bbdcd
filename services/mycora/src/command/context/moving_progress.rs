//! Progress of an export, an import or a check, on a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::usage;

/// How often the line is drawn again.
const REDRAW_EVERY: Duration = Duration::from_millis(200);

/// A line on standard error that says how far an export, an import or a check is; nothing where that is no terminal.
pub(in crate::command) struct MovingProgress {
    bar: ProgressBar,
    what: &'static str,
    began: Instant,
    drawn: Option<Instant>,
    bytes: u64,
}

impl MovingProgress {
    /// A line that begins with `what`.
    pub(in crate::command) fn new(quiet: bool, what: &'static str) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        Self { bar, what, began: Instant::now(), drawn: None, bytes: 0 }
    }

    /// Shows how many records there are, and that so many more bytes have gone.
    pub(super) fn advance(&mut self, records: u64, bytes: usize) {
        self.bytes += bytes as u64;
        let now = Instant::now();
        if !self.is_due(now) {
            return;
        }
        let millis = u64::try_from(now.duration_since(self.began).as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = self.bytes.saturating_mul(1000) / millis;
        let (bytes, rate) = (usage::bytes(self.bytes), usage::bytes(rate));
        self.bar.set_message(format!("{} {records} records, {bytes}, {rate}/s", self.what));
        self.bar.tick();
    }

    /// Shows how many keys of `subject` were looked at.
    pub(in crate::command) fn count(&mut self, subject: &str, keys: u64) {
        if self.is_due(Instant::now()) {
            self.bar.set_message(format!("{} {subject}: {keys} keys", self.what));
            self.bar.tick();
        }
    }

    /// Returns true if the line is to be drawn again.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.drawn.is_none_or(|drawn| now.duration_since(drawn) >= REDRAW_EVERY);
        if is_due {
            self.drawn = Some(now);
        }
        is_due
    }
}

impl Drop for MovingProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
