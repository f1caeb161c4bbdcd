//! Watching a flow: resumes where it was when the stream breaks.

use std::time::{Duration, Instant};

use backoff::ExponentialBackoff;
use model::Timestamp;
use proto::v1;
use rpc::RetryAdvice;

use super::outage_notice::OutageNotice;
use super::{CliSession, failed_jobs, flow};
use crate::clients::{ApiResponseStream, Clients};
use crate::failure::{ApiCallError, CliError};
use crate::output::live::{ProgressDisplay, REDRAW_EVERY};
use crate::output::progress::FlowProgress;

/// The waits after a broken stream.
const WAITS: ExponentialBackoff =
    ExponentialBackoff::between(Duration::from_millis(100), Duration::from_secs(2));
/// A coordinator that never answered is given up after this long.
pub(super) const PATIENCE_FIRST: Duration = Duration::from_secs(3);
/// One that did answer may be away for this long: it may be starting again.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for the server to end the stream after it has reported the flow's end.
const END_WITHIN: Duration = Duration::from_secs(1);

pub(super) async fn run(session: &CliSession, context: u32, id: u32) -> Result<u8, CliError> {
    let mut progress = ProgressDisplay::new(session.global.quiet);
    let flow = follow(&session.clients, context, id, &mut progress).await?;
    // How the flow ended is known: a coordinator that is away now is waited for.
    let nodes = session.clients.list_nodes_with_retry(context, id).await?;
    flow::print(session, &flow, &nodes)?;
    // Last, at the bottom of the screen, where a reader looks first.
    failed_jobs::print_failed_jobs(session, &flow).await;
    Ok(exit_code(&flow))
}

/// 0 when the flow finished, 1 when it did not.
#[must_use]
pub fn exit_code(flow: &v1::Flow) -> u8 {
    u8::from(flow.status() != v1::FlowStatus::Finished)
}

/// Follows a flow until it has ended, showing how it goes on.
///
/// # Errors
/// When the coordinator refuses or stays away, and on Ctrl-C, which leaves the flow running.
pub async fn follow(
    clients: &Clients,
    context: u32,
    id: u32,
    progress: &mut ProgressDisplay,
) -> Result<v1::Flow, CliError> {
    let mut watcher = FlowWatchLoop {
        clients,
        request: v1::WatchFlowRequest { context_id: context, flow_id: id, resume_position: String::new() },
        view: FlowProgress::at(Instant::now(), Timestamp::now()),
        progress,
        last_response: Instant::now(),
        connected: false,
        absence: OutageNotice::default(),
    };
    let result = tokio::select! {
        result = watcher.until_ended() => result,
        pressed = tokio::signal::ctrl_c() => Err(match pressed {
            Ok(()) => CliError::Interrupted(format!(
                "flow {id} continues; watch it again with `mycora flow watch {id} --context {context}`"
            )),
            Err(error) => CliError::Failed(format!("cannot wait for signals: {error}")),
        }),
    };
    let FlowWatchLoop { view, progress, .. } = watcher;
    progress.end(&view, Instant::now());
    result
}

struct FlowWatchLoop<'a> {
    clients: &'a Clients,
    request: v1::WatchFlowRequest,
    view: FlowProgress,
    progress: &'a mut ProgressDisplay,
    /// When the coordinator last answered.
    last_response: Instant,
    /// True once the coordinator has answered at all.
    connected: bool,
    absence: OutageNotice,
}

impl FlowWatchLoop<'_> {
    async fn until_ended(&mut self) -> Result<v1::Flow, CliError> {
        let mut waits = WAITS;
        loop {
            let previous_response = self.last_response;
            let broken = self.one_stream().await.err();
            if let Some(flow) = self.view.ended() {
                return Ok(flow.clone());
            }
            if self.last_response > previous_response {
                waits.reset();
            }
            let lost =
                broken.as_ref().filter(|error| matches!(error.retry, RetryAdvice::Again { .. })).cloned();
            self.may_go_on(broken)?;
            let away =
                lost.filter(|_| self.connected).and_then(|error| self.absence.on_failure(&error, PATIENCE));
            if let Some(line) = away {
                self.progress.remark(&line);
            }
            self.pause(waits.next_pause()).await;
        }
    }

    /// Decides whether a broken stream is worth another.
    fn may_go_on(&mut self, broken: Option<ApiCallError>) -> Result<(), CliError> {
        let Some(error) = broken else { return Ok(()) };
        match (error.view.code, error.retry) {
            (tonic::Code::OutOfRange, _) => {
                self.request.resume_position.clear();
                return Ok(());
            }
            // It fell behind and may resume.
            (tonic::Code::ResourceExhausted, _) | (_, RetryAdvice::Reread) => return Ok(()),
            (_, RetryAdvice::Again { .. }) => {}
            (_, RetryAdvice::Never) => return Err(error.into()),
        }
        let patience = if self.connected { PATIENCE } else { PATIENCE_FIRST };
        if self.last_response.elapsed() < patience {
            return Ok(());
        }
        let v1::WatchFlowRequest { context_id, flow_id, .. } = self.request;
        Err(match CliError::from(error) {
            CliError::Unreachable(text) | CliError::Closed(text) if self.connected => {
                CliError::Unreachable(format!(
                    "{text}\nwatch the flow again with `mycora flow watch {flow_id} --context {context_id}`"
                ))
            }
            other => other,
        })
    }

    /// Waits, while the picture goes on.
    async fn pause(&mut self, wait: Duration) {
        let until = Instant::now() + wait;
        loop {
            let next = if self.progress.is_live() { until.min(Instant::now() + REDRAW_EVERY) } else { until };
            tokio::time::sleep_until(next.into()).await;
            self.progress.update(&self.view, Instant::now(), &[]);
            if Instant::now() >= until {
                return;
            }
        }
    }

    /// Reads one stream to its end.
    async fn one_stream(&mut self) -> Result<(), ApiCallError> {
        let mut pieces = self.clients.watch_flow(self.request.clone()).await?;
        if self.request.resume_position.is_empty() {
            self.view.begin_snapshot();
        }
        while let Some(piece) = self.next(&mut pieces).await? {
            let now = Instant::now();
            (self.last_response, self.connected) = (now, true);
            if let Some(line) = self.absence.on_response() {
                self.progress.remark(line);
            }
            if !piece.resume_position.is_empty() {
                self.request.resume_position = piece.resume_position;
            }
            if let Some(event) = piece.event {
                let events = self.view.apply(now, event);
                self.progress.update(&self.view, now, &events);
            }
        }
        Ok(())
    }

    /// The next piece; meanwhile reports jobs that have been waiting for too long.
    async fn next(
        &mut self,
        pieces: &mut ApiResponseStream<v1::WatchFlowResponse>,
    ) -> Result<Option<v1::WatchFlowResponse>, ApiCallError> {
        let deadline = self.view.ended().map(|_| Instant::now() + END_WITHIN);
        loop {
            let now = Instant::now();
            let redraw = self.progress.is_live().then(|| now + REDRAW_EVERY);
            let wake = [self.view.explain_at(), redraw, deadline].into_iter().flatten().min();
            tokio::select! {
                piece = pieces.next() => return piece,
                () = sleep_until(wake) => {}
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(None);
            }
            let lines = self.view.explain(now);
            self.progress.explain(&self.view, now, &lines);
        }
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
