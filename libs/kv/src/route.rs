//! To whom something is sent, and to whom then, when it was not done there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::cluster::Cluster;
use crate::confirm::{UnconfirmedWrite, WriteConcernPolicy};
use crate::endpoint::RedisAddress;
use crate::error::{Error, Result};
use crate::link::KvLink;
use crate::value::Value;

/// How often something is sent again that was certainly not executed.
const REPEATS_MAX: u32 = 6;
/// The pause before it is sent to the same again; doubles each time.
const PAUSE: Duration = Duration::from_millis(10);

/// Where a connection leads.
#[derive(Clone)]
pub(crate) enum KvRoute {
    /// To one server.
    Link(Arc<KvLink>),
    /// To the node that serves a slot.
    Slot(Arc<Cluster>, u16),
}

impl fmt::Debug for KvRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(link) => write!(f, "{}, database {}", link.server.shown, link.database),
            Self::Slot(cluster, slot) => write!(f, "{}, slot {slot}", cluster.shown),
        }
    }
}

/// Direction that an error gives for the next attempt.
enum RouteRedirection {
    /// Nothing: the answer stands.
    Stay,
    /// The slot is served there from now on.
    Moved(Option<RedisAddress>),
    /// The slot is on its way there: only this one command goes there.
    Ask(RedisAddress),
    /// Not here, or not now.
    Elsewhere,
    /// The outcome is not known; the next command should look first.
    Unknown,
}

impl KvRoute {
    /// Returns true for an answer that says that the command was not executed, and that this route leads elsewhere by now.
    pub(crate) fn leads_elsewhere(&self, error: &Error) -> bool {
        matches!(
            self.direction(error),
            RouteRedirection::Moved(_) | RouteRedirection::Ask(_) | RouteRedirection::Elsewhere
        )
    }

    /// Returns the final error when no redirection is left to follow: that a node redirects means only that
    /// nothing was executed.
    pub(crate) fn final_error(&self, error: Error) -> Error {
        match (self, self.direction(&error)) {
            (Self::Slot(cluster, _), RouteRedirection::Moved(_) | RouteRedirection::Ask(_)) => {
                cluster.unreachable(format!("its nodes do not agree on who serves the keys: {error}"))
            }
            _ => error,
        }
    }

    fn direction(&self, error: &Error) -> RouteRedirection {
        match self {
            Self::Link(link) if link.server.is_of_sentinels() => match error {
                // It was the master when it was connected to.
                Error::Readonly(_) => RouteRedirection::Elsewhere,
                _ => RouteRedirection::Stay,
            },
            Self::Link(_) => RouteRedirection::Stay,
            Self::Slot(..) => match error {
                Error::Refused { code, message } => {
                    let address = || RedisAddress::of_server(message.split_ascii_whitespace().nth(1)?);
                    match code.as_str() {
                        "MOVED" => RouteRedirection::Moved(address()),
                        "ASK" => address().map_or(RouteRedirection::Elsewhere, RouteRedirection::Ask),
                        _ => RouteRedirection::Stay,
                    }
                }
                Error::Readonly(_) | Error::Unreachable { .. } => RouteRedirection::Elsewhere,
                Error::UnknownOutcome { .. } | Error::Unfit { .. } => RouteRedirection::Unknown,
                Error::Oom(_) | Error::DiskFull(_) | Error::Protocol(_) => RouteRedirection::Stay,
            },
        }
    }
}

/// The attempts at one thing.
pub(crate) struct RouteAttempts<'a> {
    route: &'a KvRoute,
    repeats: u32,
    next: Option<RouteHop>,
}

/// Where one attempt goes.
pub(crate) struct RouteHop {
    link: Arc<KvLink>,
    /// The node does not serve the slot yet, and accepts the command only after `ASKING`.
    is_asking: bool,
}

impl<'a> RouteAttempts<'a> {
    pub(crate) fn new(route: &'a KvRoute) -> Self {
        Self { route, repeats: 0, next: None }
    }

    /// Where the next attempt goes.
    pub(crate) async fn hop(&mut self) -> Result<RouteHop> {
        match self.next.take() {
            Some(hop) => Ok(hop),
            None => Ok(RouteHop { link: self.link().await?, is_asking: false }),
        }
    }

    /// Where the route leads as far as is known.
    pub(crate) async fn link(&mut self) -> Result<Arc<KvLink>> {
        match self.route {
            KvRoute::Link(link) => Ok(Arc::clone(link)),
            KvRoute::Slot(cluster, slot) => cluster.link(*slot).await,
        }
    }

    /// The next attempt goes where this one went.
    pub(crate) fn stay(&mut self, hop: RouteHop) {
        self.next = Some(hop);
    }

    /// Returns true when there is to be another attempt after this error, after a pause when one is due.
    pub(crate) async fn should_retry(&mut self, error: &Error) -> bool {
        match self.route.direction(error) {
            RouteRedirection::Stay => false,
            direction => self.turn(direction).boxed().await,
        }
    }

    async fn turn(&mut self, direction: RouteRedirection) -> bool {
        match (self.route, &direction) {
            (KvRoute::Slot(cluster, _), RouteRedirection::Unknown) => {
                cluster.mark_stale();
                return false;
            }
            _ if self.repeats == REPEATS_MAX => return false,
            (KvRoute::Link(link), _) => link.renew(),
            (KvRoute::Slot(cluster, _), RouteRedirection::Ask(address)) => {
                self.next = Some(RouteHop { link: cluster.link_to(address), is_asking: true });
            }
            (KvRoute::Slot(cluster, _), RouteRedirection::Moved(Some(address))) => {
                self.next = Some(RouteHop { link: cluster.link_to(address), is_asking: false });
                self.read_map(cluster).await;
            }
            (KvRoute::Slot(cluster, _), _) => self.read_map(cluster).await,
        }
        // No server may be asked again without a pause.
        if self.next.is_none() || self.repeats > 1 {
            tokio::time::sleep(PAUSE * (1 << self.repeats)).await;
        }
        self.repeats += 1;
        true
    }

    async fn read_map(&self, cluster: &Arc<Cluster>) {
        if let Err(error) = cluster.read_after(&cluster.cached_map()).await {
            tracing::debug!(%error, "cannot read the primaries of the cluster");
        }
    }
}

impl RouteHop {
    pub(crate) async fn send(&self, cmd: &redis::Cmd) -> Result<Value> {
        if !self.is_asking {
            return self.link.send(cmd).await;
        }
        let mut packed = self.packed(2);
        packed.add_command(cmd.clone());
        let mut answers = self.link.send_all(&packed, 1, 1).await?;
        Value::from_redis(&self.link.server.shown, answers.pop().unwrap_or(redis::Value::Nil))
    }

    /// Makes a change, and gives its answer when it is kept as `terms` has it. It is about `key`.
    pub(crate) async fn change(
        &self,
        call: &redis::Cmd,
        key: &str,
        terms: WriteConcernPolicy<'_>,
    ) -> Result<Value> {
        let mut known = self.link.identify().await?;
        let mut concern = terms(&known.process.setup);
        if concern.is_err() {
            // It may have been set up since.
            known = self.link.identify_anew().await?;
            concern = terms(&known.process.setup);
        }
        let concern = concern.map_err(|reason| {
            if self.link.server.is_of_sentinels() {
                // Perhaps another one is the master by now.
                self.link.renew();
            }
            Error::Unfit { endpoint: self.link.server.shown.clone(), reason }
        })?;
        let answer = if self.is_asking {
            let mut packed = self.packed(2);
            packed.add_command(call.clone());
            let mut answers = self.link.send_all_to(&known, &packed, 1, 1).await?;
            Value::from_redis(&self.link.server.shown, answers.pop().unwrap_or(redis::Value::Nil))?
        } else {
            self.link.send_to(&known, call).await?
        };
        if let Some(confirm) = concern {
            let (key, process) = (key.to_owned(), Arc::clone(&known.process));
            let change = UnconfirmedWrite { confirm, key, is_asking: self.is_asking, process };
            self.link.confirm(&known, change).await?;
        }
        Ok(answer)
    }

    fn packed(&self, capacity: usize) -> redis::Pipeline {
        let mut packed = redis::Pipeline::with_capacity(capacity);
        packed.ignore_errors();
        if self.is_asking {
            packed.add_command(redis::cmd("ASKING"));
        }
        packed
    }
}
