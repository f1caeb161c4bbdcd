//! `mycora runner watch`.

use std::time::{Duration, Instant};

use clap::Args;
use model::Timestamp;
use proto::v1;
use proto::v1::watch_runners_response::Event;
use rpc::Retry;
use tonic::Code;

use crate::command::Session;
use crate::command::absence::Absence;
use crate::failure::{CallError, Failure};
use crate::output::{self, Format, json, places};

/// How long the registry may be away.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries to reach it.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) const HELP: &str = "\
Tells each runner, then each that changes, lives or dies, until it is interrupted. With --output json each answer is a document on a line of its own; --from goes on after one of them.

Example:
  mycora runner watch --context 1 --output json";

/// What `runner watch` takes.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Go on after the answer with this `resumePosition`
    #[arg(long = "from", value_name = "POSITION", default_value = "", hide_default_value = true)]
    pub position: String,
    /// End when every runner was told as it is now
    #[arg(long, conflicts_with = "position")]
    pub once: bool,
}

pub(super) async fn run(session: &Session, args: &WatchArgs) -> Result<(), Failure> {
    let mut request =
        v1::WatchRunnersRequest { context_id: session.context()?, resume_position: args.position.clone() };
    let (mut heard, mut absence) = (None, Absence::default());
    loop {
        let Err(error) = one_stream(session, args.once, &mut request, (&mut heard, &mut absence)).await
        else {
            return Ok(());
        };
        let Ended::Broken(error) = error else { return Err(error.into()) };
        match (error.view.code, error.retry) {
            // It is told from the beginning.
            (Code::OutOfRange, _) if heard.is_some() => request.resume_position.clear(),
            (Code::ResourceExhausted, _) | (_, Retry::Reread) => {}
            (_, Retry::Again { .. }) if heard.is_some_and(|heard: Instant| heard.elapsed() < PATIENCE) => {
                if let Some(line) = absence.broke(&error, PATIENCE).filter(|_| !session.global.quiet) {
                    output::note(&line);
                }
                tokio::time::sleep(PAUSE).await;
            }
            _ => return Err(error.into()),
        }
    }
}

/// Why a stream was not read to its end.
enum Ended {
    Broken(CallError),
    Failed(Failure),
}

impl From<Ended> for Failure {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Broken(error) => error.into(),
            Ended::Failed(failure) => failure,
        }
    }
}

async fn one_stream(
    session: &Session,
    once: bool,
    request: &mut v1::WatchRunnersRequest,
    (heard, absence): (&mut Option<Instant>, &mut Absence),
) -> Result<(), Ended> {
    let mut pieces = session.clients.watch_runners(request.clone()).await.map_err(Ended::Broken)?;
    while let Some(piece) = pieces.next().await.map_err(Ended::Broken)? {
        *heard = Some(Instant::now());
        if let Some(line) = absence.answered().filter(|_| !session.global.quiet) {
            output::note(line);
        }
        if !piece.resume_position.is_empty() {
            request.resume_position.clone_from(&piece.resume_position);
        }
        tell(session.global.output, &piece).map_err(Ended::Failed)?;
        if once && matches!(piece.event, Some(Event::SnapshotEnd(_))) {
            return Ok(());
        }
    }
    Ok(())
}

fn tell(format: Format, piece: &v1::WatchRunnersResponse) -> Result<(), Failure> {
    if format != Format::Table {
        return output::print_one_of_many(format, &json::of(piece));
    }
    match &piece.event {
        Some(Event::Runner(runner)) => output::print(&places::runner_line(runner, Timestamp::now())),
        Some(Event::Removed(v1::RemovedRunner { runner_id })) => {
            output::print(&format!("runner {runner_id} was deleted\n"))
        }
        Some(Event::SnapshotEnd(_) | Event::Heartbeat(_)) | None => Ok(()),
    }
}
