//! Following what changes until it is interrupted: resumes where it was when the stream breaks.

use std::time::{Duration, Instant};

use rpc::Retry;
use tonic::Code;

use super::Session;
use super::absence::Absence;
use crate::clients::{Clients, Pieces};
use crate::failure::{CallError, Failure};
use crate::output::json::Named;
use crate::output::{self, Format, json};

/// How long the coordinator may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries to reach it.
const PAUSE: Duration = Duration::from_secs(1);

/// Something that tells of changes from a position on.
pub(super) trait Changes {
    /// One answer of its stream.
    type Answer: Named;

    /// Opens the stream behind a position; an empty one begins with a snapshot.
    async fn open(&self, clients: &Clients, position: &str) -> Result<Pieces<Self::Answer>, CallError>;

    /// The position after an answer; empty within a snapshot.
    fn position_of<'a>(&self, answer: &'a Self::Answer) -> &'a str;

    /// What people are told of an answer; nothing of a sign of life.
    fn line(&self, answer: &Self::Answer) -> Option<String>;

    /// Whether an answer is the last that is wanted.
    fn is_last(&self, answer: &Self::Answer) -> bool;
}

/// Follows the changes after a position, over as many streams as it takes. Programs are given each answer.
pub(super) async fn follow(
    session: &Session,
    changes: &impl Changes,
    position: String,
) -> Result<(), Failure> {
    let mut follower = Follower { session, changes, position, heard: None, absence: Absence::default() };
    loop {
        match follower.one_stream().await {
            Ok(()) => return Ok(()),
            Err(Ended::Broken(error)) => follower.wait_after(error).await?,
            Err(Ended::Failed(failure)) => return Err(failure),
        }
    }
}

/// Why a stream was not read to its end.
enum Ended {
    Broken(CallError),
    Failed(Failure),
}

struct Follower<'a, C> {
    session: &'a Session,
    changes: &'a C,
    position: String,
    /// When there was an answer last.
    heard: Option<Instant>,
    absence: Absence,
}

impl<C: Changes> Follower<'_, C> {
    async fn one_stream(&mut self) -> Result<(), Ended> {
        let opened = self.changes.open(&self.session.clients, &self.position).await;
        let mut answers = opened.map_err(Ended::Broken)?;
        while let Some(answer) = answers.next().await.map_err(Ended::Broken)? {
            self.heard = Some(Instant::now());
            if let Some(line) = self.absence.answered().filter(|_| !self.session.global.quiet) {
                output::note(line);
            }
            let position = self.changes.position_of(&answer);
            if !position.is_empty() {
                position.clone_into(&mut self.position);
            }
            self.tell(&answer).map_err(Ended::Failed)?;
            if self.changes.is_last(&answer) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn tell(&self, answer: &C::Answer) -> Result<(), Failure> {
        match self.session.global.output {
            Format::Table => self.changes.line(answer).map_or(Ok(()), |line| output::print(&line)),
            format => output::print_one_of_many(format, &json::of(answer)),
        }
    }

    /// Waits until a broken stream is worth another.
    async fn wait_after(&mut self, error: CallError) -> Result<(), Failure> {
        match (error.view.code, error.retry) {
            // It is told from the beginning.
            (Code::OutOfRange, _) if self.heard.is_some() => self.position.clear(),
            (Code::ResourceExhausted, _) | (_, Retry::Reread) => {}
            (_, Retry::Again { .. }) if self.heard.is_some_and(|heard| heard.elapsed() < PATIENCE) => {
                let line = self.absence.broke(&error, PATIENCE);
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
