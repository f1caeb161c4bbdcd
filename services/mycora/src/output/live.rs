//! Progress on standard error: a live tree with a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use console::{Style, Term};
use indicatif::{ProgressBar, ProgressStyle};
use proto::v1::NodeState;

use super::progress::{FlowProgress, ProgressEvent};
use super::terminal::drawable;
use super::{note, time, tree};

/// How often a live tree is redrawn, so that its times advance.
pub const REDRAW_EVERY: Duration = Duration::from_millis(250);
/// Changes that come faster than this share one drawing.
const REDRAW_PAUSE: Duration = Duration::from_millis(40);
/// Lines below the tree: the bar, and room for the prompt.
const LINES_KEPT_FREE: usize = 3;
/// Where the size of the terminal is not known.
const SIZE_DEFAULT: (u16, u16) = (24, 80);

/// Shows how something goes on.
pub enum ProgressDisplay {
    /// Nothing is shown.
    Silent,
    /// One line for each change.
    Plain,
    /// Only what keeps it from going on.
    ProblemsOnly,
    /// A picture that changes.
    Live(LiveTree),
}

/// Tree and progress bar drawn on a terminal.
pub struct LiveTree {
    bar: ProgressBar,
    drawn: Option<Instant>,
}

impl ProgressDisplay {
    /// Chooses the display that suits standard error.
    #[must_use]
    pub fn new(quiet: bool) -> Self {
        if quiet {
            Self::Silent
        } else if std::io::stderr().is_terminal() {
            Self::Live(LiveTree { bar: ProgressBar::new(0), drawn: None })
        } else {
            Self::Plain
        }
    }

    /// Returns true when the display has to be redrawn from time to time.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// Shows what happened and the present state of the flow.
    pub fn update(&mut self, view: &FlowProgress, now: Instant, events: &[ProgressEvent]) {
        match self {
            Self::Silent => {}
            Self::Plain => events.iter().for_each(|event| note(&event.text)),
            Self::ProblemsOnly => {
                events.iter().filter(|event| event.transient).for_each(|event| note(&event.text))
            }
            Self::Live(picture) => {
                for event in events.iter().filter(|event| event.transient) {
                    picture.bar.println(drawable(&event.text));
                }
                let due = picture.drawn.is_none_or(|drawn| now.duration_since(drawn) >= REDRAW_PAUSE);
                if due || view.ended().is_some() {
                    picture.draw(view, now);
                }
            }
        }
    }

    /// Reports jobs that have been waiting for too long; a live tree shows them anyway.
    pub fn explain(&mut self, view: &FlowProgress, now: Instant, lines: &[String]) {
        match self {
            Self::Plain | Self::ProblemsOnly => lines.iter().for_each(|line| note(line)),
            Self::Silent | Self::Live(_) => self.update(view, now, &[]),
        }
    }

    /// Prints a note that is no change of the flow, above the live tree if there is one.
    pub fn remark(&self, line: &str) {
        match self {
            Self::Silent => {}
            Self::Plain | Self::ProblemsOnly => note(line),
            Self::Live(picture) => picture.bar.println(drawable(line)),
        }
    }

    /// Leaves the last picture standing.
    pub fn end(&mut self, view: &FlowProgress, now: Instant) {
        if let Self::Live(picture) = self
            && picture.drawn.is_some()
        {
            picture.draw(view, now);
            picture.bar.abandon();
        }
    }
}

impl LiveTree {
    fn draw(&mut self, view: &FlowProgress, now: Instant) {
        if self.drawn.is_none() {
            let style = ProgressStyle::with_template("{msg}\n{bar:30} {pos}/{len} jobs{prefix}");
            self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
        let (rows, columns) = Term::stderr().size_checked().unwrap_or(SIZE_DEFAULT);
        let height = usize::from(rows).saturating_sub(LINES_KEPT_FREE).max(1);
        let picture: Vec<String> = tree::lines(view, now, height, usize::from(columns).saturating_sub(1))
            .into_iter()
            .map(|line| format!("{}{} {}", line.indent, symbol(line.state), line.text))
            .collect();
        let counts = view.counts();
        self.bar.set_length(counts.total as u64);
        self.bar.set_position(counts.ended as u64);
        let failed = match counts.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        let lasted = view.lasted(now).map(|lasted| format!(" · {}", time::duration(lasted)));
        self.bar.set_prefix(format!("{failed}{}", lasted.unwrap_or_default()));
        self.bar.set_message(picture.join("\n"));
        self.bar.tick();
        self.drawn = Some(now);
    }
}

fn symbol(state: Option<NodeState>) -> String {
    let style = Style::new().for_stderr();
    let (symbol, style) = match state {
        None | Some(NodeState::Unspecified) => (" ", style),
        Some(NodeState::Pending) => ("·", style.dim()),
        Some(NodeState::Ready) => ("○", style.yellow()),
        Some(NodeState::Dispatched) => ("◌", style.cyan()),
        Some(NodeState::Running) => ("●", style.cyan().bold()),
        Some(NodeState::Completed) => ("✔", style.green()),
        Some(NodeState::Failed) => ("✘", style.red().bold()),
        Some(NodeState::Cancelled) => ("⊘", style.magenta()),
        Some(NodeState::Skipped) => ("↷", style.dim()),
    };
    style.apply_to(symbol).to_string()
}
