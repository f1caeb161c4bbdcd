//! The connection to the daemon: made, watched, made again.

use std::sync::Arc;
use std::time::Duration;

use backoff::ExponentialBackoff;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;

use crate::bus::{BusNode, BusStatus};

use super::api::{DaemonApi, DaemonApiError, HTTP_CALLS_MAX, WS_CALLS_MAX};
use super::metrics::Metrics;
use super::{Config, Timings};

/// How often the daemon's description of itself is read again.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Time limit to read it: the daemon answers no one while another client's pop waits on it.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// Shared connection, one at a time. A caller that finds it broken reports that.
#[derive(Debug)]
pub(super) struct DaemonConnection {
    url: String,
    timings: Timings,
    metrics: Metrics,
    api: watch::Sender<Option<Arc<DaemonApi>>>,
    status: watch::Sender<BusStatus>,
    /// Calls that may wait for a reply together …
    calls: Semaphore,
    /// … and those among them to nodes that may not be there, which must not take all of them.
    probes: Semaphore,
}

/// Leave for a call that may wait.
pub(super) type DaemonCallPermit<'a> = [Option<SemaphorePermit<'a>>; 2];

impl DaemonConnection {
    pub(super) fn new(config: &Config, metrics: Metrics) -> Self {
        let calls = if config.url.starts_with("ws://") { WS_CALLS_MAX } else { HTTP_CALLS_MAX };
        let problem = "it was not spoken to yet".to_owned();
        Self {
            url: config.url.clone(),
            timings: config.timings,
            metrics,
            api: watch::Sender::new(None),
            status: watch::Sender::new(BusStatus { up: false, problem, node: None }),
            calls: Semaphore::new(calls),
            probes: Semaphore::new(calls / 2),
        }
    }

    /// Returns the state of the connection, to follow.
    pub(super) fn status(&self) -> watch::Receiver<BusStatus> {
        self.status.subscribe()
    }

    /// Returns the problem of the connection, in words.
    pub(super) fn problem(&self) -> String {
        self.status.borrow().problem.clone()
    }

    /// Waits until it stands.
    pub(super) async fn up(&self) -> Arc<DaemonApi> {
        let mut api = self.api.subscribe();
        loop {
            if let Some(api) = api.borrow_and_update().clone() {
                return api;
            }
            if api.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The connection, and a place for a call that may wait, to a node that is there or may not be.
    pub(super) async fn permit(&self, here: bool) -> (Arc<DaemonApi>, DaemonCallPermit<'_>) {
        let probe = if here { None } else { self.probes.acquire().await.ok() };
        let place = [probe, self.calls.acquire().await.ok()];
        (self.up().await, place)
    }

    /// Notes what a call ran into; a connection that is down is made again.
    pub(super) fn failed(&self, api: &Arc<DaemonApi>, error: &DaemonApiError) {
        let DaemonApiError::Down(problem) = error else { return };
        let down = |current: &mut Option<Arc<DaemonApi>>| {
            let this = current.as_ref().is_some_and(|current| Arc::ptr_eq(current, api));
            if this {
                *current = None;
            }
            this
        };
        if self.api.send_if_modified(down) {
            self.went_down(problem);
        }
    }

    /// Keeps it standing, for ever.
    pub(super) async fn keep(&self) {
        let Timings { reconnect_min, reconnect_max, .. } = self.timings;
        let mut backoff = ExponentialBackoff::between(reconnect_min, reconnect_max);
        loop {
            match self.connect().await {
                Ok((api, node)) => {
                    backoff.reset();
                    self.came_up(node);
                    self.api.send_replace(Some(Arc::clone(&api)));
                    self.watch(&api).await;
                }
                Err(error) => {
                    self.status.send_if_modified(|status| {
                        let problem = error.to_string();
                        let changed = status.up || status.problem != problem;
                        (status.up, status.problem) = (false, problem);
                        changed
                    });
                    tracing::debug!(url = self.url, %error, "the Mycelium daemon is not there");
                }
            }
            backoff.pause().await;
        }
    }

    async fn connect(&self) -> Result<(Arc<DaemonApi>, BusNode), DaemonApiError> {
        let api = DaemonApi::connect(&self.url, Duration::from_secs(self.timings.reply_secs)).await?;
        let node = look(&api).await?;
        Ok((Arc::new(api), node))
    }

    /// Waits until the connection is gone, or a caller has found that out.
    async fn watch(&self, api: &Arc<DaemonApi>) {
        let mut current = self.api.subscribe();
        let mut next_look = Instant::now() + LOOK_EVERY;
        loop {
            tokio::select! {
                problem = api.gone() => self.failed(api, &DaemonApiError::Down(problem)),
                _ = current.changed() => {}
                () = tokio::time::sleep_until(next_look) => {
                    next_look = Instant::now() + LOOK_EVERY;
                    match look(api).await {
                        Ok(node) => self.came_up(node),
                        Err(error) => self.failed(api, &error),
                    }
                }
            }
            if current.borrow_and_update().as_ref().is_none_or(|current| !Arc::ptr_eq(current, api)) {
                return;
            }
        }
    }

    fn came_up(&self, node: BusNode) {
        self.status.send_if_modified(|status| {
            let changed = !status.up || status.node.as_ref() != Some(&node);
            if !status.up {
                tracing::info!(url = self.url, key = %node.key, "the Mycelium daemon is there");
            }
            status.problem.clear();
            if let Some(before) = status.node.as_ref().filter(|before| before.key != node.key) {
                // Those who know us by the former key do not find us any more.
                tracing::warn!(before = %before.key, now = %node.key, "the Mycelium daemon has another key");
            }
            status.up = true;
            status.node = Some(node);
            changed
        });
        self.metrics.up.set(1);
    }

    fn went_down(&self, problem: &str) {
        tracing::warn!(url = self.url, problem, "the Mycelium daemon is lost");
        self.metrics.up.set(0);
        self.metrics.lost.inc();
        self.status.send_modify(|status| {
            status.up = false;
            problem.clone_into(&mut status.problem);
        });
    }
}

async fn look(api: &DaemonApi) -> Result<BusNode, DaemonApiError> {
    let looked = tokio::time::timeout(LOOK_TIMEOUT, api.node()).await;
    looked.unwrap_or_else(|_| {
        Err(DaemonApiError::Down("it does not answer: a pop of another client may block it".to_owned()))
    })
}
