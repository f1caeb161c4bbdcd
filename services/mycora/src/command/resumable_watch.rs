//! Following what changes until it is interrupted: resumes where it was when the stream breaks.

use std::time::{Duration, Instant};

use rpc::RetryAdvice;
use tonic::Code;

use super::CliSession;
use super::outage_notice::OutageNotice;
use crate::clients::{ApiResponseStream, Clients};
use crate::failure::{ApiCallError, CliError};
use crate::output::json::ApiMessage;
use crate::output::{self, OutputFormat, json};

/// How long the coordinator may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries to reach it.
const PAUSE: Duration = Duration::from_secs(1);

/// Source of changes from a position on.
pub(super) trait ResumableWatch {
    /// One answer of its stream.
    type Answer: ApiMessage;

    /// Opens the stream behind a position; an empty one begins with a snapshot.
    async fn open(
        &self,
        clients: &Clients,
        position: &str,
    ) -> Result<ApiResponseStream<Self::Answer>, ApiCallError>;

    /// The position after an answer; empty within a snapshot.
    fn position_of<'a>(&self, answer: &'a Self::Answer) -> &'a str;

    /// Returns the line that shows an answer to people; `None` for a heartbeat.
    fn line(&self, answer: &Self::Answer) -> Option<String>;

    /// Returns true for the last answer that is wanted.
    fn is_last(&self, answer: &Self::Answer) -> bool;
}

/// Follows the changes after a position, over as many streams as it takes. Programs are given each answer.
pub(super) async fn follow(
    session: &CliSession,
    changes: &impl ResumableWatch,
    position: String,
) -> Result<(), CliError> {
    let mut follower =
        WatchLoop { session, changes, position, last_response: None, absence: OutageNotice::default() };
    loop {
        match follower.one_stream().await {
            Ok(()) => return Ok(()),
            Err(WatchStreamError::Broken(error)) => follower.wait_after(error).await?,
            Err(WatchStreamError::Failed(failure)) => return Err(failure),
        }
    }
}

/// Why a stream was not read to its end.
enum WatchStreamError {
    Broken(ApiCallError),
    Failed(CliError),
}

struct WatchLoop<'a, C> {
    session: &'a CliSession,
    changes: &'a C,
    position: String,
    /// When there was an answer last.
    last_response: Option<Instant>,
    absence: OutageNotice,
}

impl<C: ResumableWatch> WatchLoop<'_, C> {
    async fn one_stream(&mut self) -> Result<(), WatchStreamError> {
        let opened = self.changes.open(&self.session.clients, &self.position).await;
        let mut answers = opened.map_err(WatchStreamError::Broken)?;
        while let Some(answer) = answers.next().await.map_err(WatchStreamError::Broken)? {
            self.last_response = Some(Instant::now());
            if let Some(line) = self.absence.on_response().filter(|_| !self.session.global.quiet) {
                output::note(line);
            }
            let position = self.changes.position_of(&answer);
            if !position.is_empty() {
                position.clone_into(&mut self.position);
            }
            self.print_answer(&answer).map_err(WatchStreamError::Failed)?;
            if self.changes.is_last(&answer) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn print_answer(&self, answer: &C::Answer) -> Result<(), CliError> {
        match self.session.global.output {
            OutputFormat::Table => self.changes.line(answer).map_or(Ok(()), |line| output::print(&line)),
            format => output::print_stream_item(format, &json::of(answer)),
        }
    }

    /// Waits until a broken stream is worth another.
    async fn wait_after(&mut self, error: ApiCallError) -> Result<(), CliError> {
        match (error.view.code, error.retry) {
            // The position is no longer kept: start over with a snapshot.
            (Code::OutOfRange, _) if self.last_response.is_some() => self.position.clear(),
            (Code::ResourceExhausted, _) | (_, RetryAdvice::Reread) => {}
            (_, RetryAdvice::Again { .. })
                if self.last_response.is_some_and(|last_response| last_response.elapsed() < PATIENCE) =>
            {
                let line = self.absence.on_failure(&error, PATIENCE);
                if let Some(line) = line.filter(|_| !self.session.global.quiet) {
                    output::note(&line);
                }
                tokio::time::sleep(PAUSE).await;
            }
            _ => return Err(error.into()),
        }
        Ok(())
    }
}
