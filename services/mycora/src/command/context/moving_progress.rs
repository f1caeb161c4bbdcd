//! Progress of an export or import, on a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::usage;

/// How often the line is drawn again.
const REDRAW_EVERY: Duration = Duration::from_millis(200);

/// A line on standard error that says how far an export or import is; nothing where that is no terminal.
pub(super) struct MovingProgress {
    bar: ProgressBar,
    what: &'static str,
    began: Instant,
    drawn: Option<Instant>,
    bytes: u64,
}

impl MovingProgress {
    /// A line that begins with `what`.
    pub(super) fn new(quiet: bool, what: &'static str) -> Self {
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
        if self.drawn.is_some_and(|drawn| now.duration_since(drawn) < REDRAW_EVERY) {
            return;
        }
        self.drawn = Some(now);
        let millis = u64::try_from(now.duration_since(self.began).as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = self.bytes.saturating_mul(1000) / millis;
        let (bytes, rate) = (usage::bytes(self.bytes), usage::bytes(rate));
        self.bar.set_message(format!("{} {records} records, {bytes}, {rate}/s", self.what));
        self.bar.tick();
    }
}

impl Drop for MovingProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
