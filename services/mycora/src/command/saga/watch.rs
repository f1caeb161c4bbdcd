//! `mycora saga watch`.

use clap::Args;
use model::Timestamp;
use proto::v1;
use proto::v1::watch_sagas_response::Event;

use super::instances;
use super::scope::{SagaCommandScope, SagaInstanceArg, SagaInstanceFilter};
use crate::clients::{ApiResponseStream, Clients};
use crate::command::resumable_watch::{self, ResumableWatch};
use crate::failure::{ApiCallError, CliError};
use crate::output::saga::instance;
use crate::output::{self, OutputFormat};

pub(super) const AFTER_HELP: &str = "\
With a correlation it shows each change of that instance until it has ended: the exit code is 0 when it completed, and 1 when it ended otherwise. Without one it shows each instance that has not ended, then each that changes, until it is interrupted. Changes in quick succession may be merged; `mycora saga timeline` has every one. With --output json each answer is a document on a line of its own; --from continues after one of them.

Examples:
  mycora saga watch order-fulfilment order-7
  mycora saga watch order-fulfilment --output json
  mycora saga watch --once";

/// Arguments of `saga watch`.
#[derive(Debug, Args)]
pub struct SagaWatchArgs {
    /// Saga or instance to watch.
    #[command(flatten)]
    pub instance: SagaInstanceFilter,
    /// Begin with those that have ended as well
    #[arg(long, conflicts_with = "correlation")]
    pub ended: bool,
    /// Show changes only, not the instances that are there already
    #[arg(long, conflicts_with_all = ["correlation", "ended", "once", "position"])]
    pub changes: bool,
    /// Go on after the answer with this `resumePosition`
    #[arg(long = "from", value_name = "POSITION", default_value = "", hide_default_value = true)]
    pub position: String,
    /// End once the present state of every instance was shown
    #[arg(long, conflicts_with = "position")]
    pub once: bool,
}

pub(super) async fn run(scope: &SagaCommandScope<'_>, args: SagaWatchArgs) -> Result<u8, CliError> {
    let SagaWatchArgs { instance: SagaInstanceFilter { saga, correlation }, ended, changes, position, once } =
        args;
    if let (Some(saga), Some(correlation), false) = (&saga, &correlation, once) {
        let instance = SagaInstanceArg { saga: saga.clone(), correlation: correlation.clone() };
        return follow(scope, instance, position).await;
    }
    let snapshot = match (ended || correlation.is_some(), changes) {
        (true, _) => v1::SagaSnapshot::Unspecified,
        (false, true) => v1::SagaSnapshot::None,
        (false, false) => v1::SagaSnapshot::Open,
    };
    let until = if once { WatchStopCondition::Snapshot } else { WatchStopCondition::Interrupted };
    let watched = SagaListWatch { request: request(scope, saga, correlation, snapshot), until };
    resumable_watch::follow(scope.session, &watched, position).await?;
    Ok(0)
}

/// Watches an instance until it has ended, and shows it then; gives the exit code.
pub(super) async fn until_ended(
    scope: &SagaCommandScope<'_>,
    instance: SagaInstanceArg,
) -> Result<u8, CliError> {
    follow(scope, instance, String::new()).await
}

async fn follow(
    scope: &SagaCommandScope<'_>,
    instance: SagaInstanceArg,
    position: String,
) -> Result<u8, CliError> {
    let SagaInstanceArg { saga, correlation } = instance.clone();
    let request = request(scope, Some(saga), Some(correlation), v1::SagaSnapshot::Unspecified);
    let watched = SagaListWatch { request, until: WatchStopCondition::End };
    // One that is not there would never end.
    instances::read(scope, instance.clone()).await?;
    let following = resumable_watch::follow(scope.session, &watched, position);
    tokio::select! {
        followed = following => followed?,
        pressed = tokio::signal::ctrl_c() => return Err(match pressed {
            Ok(()) => interrupted(scope, &instance),
            Err(error) => CliError::Failed(format!("cannot wait for signals: {error}")),
        }),
    }
    let ended = instances::read(scope, instance).await?;
    if scope.format() == OutputFormat::Table {
        output::print(&format!("\n{}", instance::whole(&ended, Timestamp::now())))?;
    }
    let status = ended.saga.map_or(v1::SagaStatus::Unspecified, |saga| saga.status());
    Ok(u8::from(status != v1::SagaStatus::Completed))
}

fn interrupted(scope: &SagaCommandScope<'_>, instance: &SagaInstanceArg) -> CliError {
    let SagaInstanceArg { saga, correlation } = instance;
    let tenant = match scope.tenant_id.as_str() {
        "" => String::new(),
        tenant => format!(" --tenant {tenant}"),
    };
    CliError::Interrupted(format!(
        "the instance continues; watch it again with `mycora saga watch {saga} {}{tenant}`",
        instance::quoted(correlation)
    ))
}

fn request(
    scope: &SagaCommandScope<'_>,
    saga: Option<String>,
    correlation: Option<String>,
    snapshot: v1::SagaSnapshot,
) -> v1::WatchSagasRequest {
    v1::WatchSagasRequest {
        tenant_id: scope.tenant_id.clone(),
        saga: saga.unwrap_or_default(),
        correlation_id: correlation.unwrap_or_default(),
        snapshot: snapshot.into(),
        resume_position: String::new(),
    }
}

/// Instances that match.
struct SagaListWatch {
    request: v1::WatchSagasRequest,
    until: WatchStopCondition,
}

/// Condition that ends a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchStopCondition {
    /// The user interrupts it.
    Interrupted,
    /// Everything was told as it is now.
    Snapshot,
    /// The instance has ended.
    End,
}

impl ResumableWatch for SagaListWatch {
    type Answer = v1::WatchSagasResponse;

    async fn open(
        &self,
        clients: &Clients,
        position: &str,
    ) -> Result<ApiResponseStream<Self::Answer>, ApiCallError> {
        let resume_position = position.to_owned();
        clients.watch_sagas(v1::WatchSagasRequest { resume_position, ..self.request.clone() }).await
    }

    fn position_of<'a>(&self, answer: &'a Self::Answer) -> &'a str {
        &answer.resume_position
    }

    fn line(&self, answer: &Self::Answer) -> Option<String> {
        match answer.event.as_ref()? {
            Event::Saga(saga) => Some(instance::line(saga)),
            Event::SnapshotEnd(_) | Event::Heartbeat(_) => None,
        }
    }

    fn is_last(&self, answer: &Self::Answer) -> bool {
        match (&answer.event, self.until) {
            (Some(Event::SnapshotEnd(_)), WatchStopCondition::Snapshot) => true,
            (Some(Event::Saga(saga)), WatchStopCondition::End) => instance::is_ended(saga),
            _ => false,
        }
    }
}
