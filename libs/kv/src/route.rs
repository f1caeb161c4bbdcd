//! To whom something is sent, and to whom then, when it was not done there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::cluster::Cluster;
use crate::endpoint::Address;
use crate::error::{Error, Result};
use crate::link::Link;
use crate::value::Value;

/// How often something is sent again that was certainly not executed.
const REPEATS_MAX: u32 = 6;
/// The pause before it is sent to the same again; doubles each time.
const PAUSE: Duration = Duration::from_millis(10);

/// Where a connection leads.
#[derive(Clone)]
pub(crate) enum Route {
    /// To one server.
    Link(Arc<Link>),
    /// To whoever serves a slot.
    Slot(Arc<Cluster>, u16),
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(link) => write!(f, "{}, database {}", link.server.shown, link.database),
            Self::Slot(cluster, slot) => write!(f, "{}, slot {slot}", cluster.shown),
        }
    }
}

/// What an error says about where to go.
enum Direction {
    /// Nothing: the answer stands.
    Stay,
    /// The slot is served there from now on.
    Moved(Option<Address>),
    /// This once, while the slot is on its way there.
    Ask(Address),
    /// Not here, or not now.
    Elsewhere,
    /// It is not known what became of it; the next should look first.
    Doubt,
}

impl Route {
    /// Whether an answer says that the command was not executed, and that this route leads elsewhere by now.
    pub(crate) fn leads_elsewhere(&self, error: &Error) -> bool {
        matches!(self.direction(error), Direction::Moved(_) | Direction::Ask(_) | Direction::Elsewhere)
    }

    /// The error for who sent it, when nobody else is left to send to: that a node sends elsewhere says no more than that
    /// nothing was executed.
    pub(crate) fn given_up(&self, error: Error) -> Error {
        match (self, self.direction(&error)) {
            (Self::Slot(cluster, _), Direction::Moved(_) | Direction::Ask(_)) => {
                cluster.unreachable(format!("its nodes do not agree on who serves the keys: {error}"))
            }
            _ => error,
        }
    }

    fn direction(&self, error: &Error) -> Direction {
        match self {
            Self::Link(link) if link.server.is_of_sentinels() => match error {
                // It was the master when it was connected to.
                Error::Readonly(_) => Direction::Elsewhere,
                _ => Direction::Stay,
            },
            Self::Link(_) => Direction::Stay,
            Self::Slot(..) => match error {
                Error::Refused { code, message } => {
                    let address = || Address::of_server(message.split_ascii_whitespace().nth(1)?);
                    match code.as_str() {
                        "MOVED" => Direction::Moved(address()),
                        "ASK" => address().map_or(Direction::Elsewhere, Direction::Ask),
                        _ => Direction::Stay,
                    }
                }
                Error::Readonly(_) | Error::Unreachable { .. } => Direction::Elsewhere,
                Error::UnknownOutcome { .. } => Direction::Doubt,
                Error::Oom(_) | Error::Protocol(_) => Direction::Stay,
            },
        }
    }
}

/// The attempts at one thing.
pub(crate) struct Attempts<'a> {
    route: &'a Route,
    repeats: u32,
    next: Option<Hop>,
}

/// Where one attempt goes.
pub(crate) struct Hop {
    link: Arc<Link>,
    /// The node does not serve the slot yet, and does so when told that this is known.
    is_asking: bool,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(route: &'a Route) -> Self {
        Self { route, repeats: 0, next: None }
    }

    /// Where the next attempt goes.
    pub(crate) async fn hop(&mut self) -> Result<Hop> {
        match self.next.take() {
            Some(hop) => Ok(hop),
            None => Ok(Hop { link: self.link().await?, is_asking: false }),
        }
    }

    /// Where the route leads as far as is known.
    pub(crate) async fn link(&mut self) -> Result<Arc<Link>> {
        match self.route {
            Route::Link(link) => Ok(Arc::clone(link)),
            Route::Slot(cluster, slot) => cluster.link(*slot).await,
        }
    }

    /// The next attempt goes where this one went.
    pub(crate) fn stay(&mut self, hop: Hop) {
        self.next = Some(hop);
    }

    /// Whether there is to be another attempt after this error; if so, after a pause when one is due.
    pub(crate) async fn again(&mut self, error: &Error) -> bool {
        match self.route.direction(error) {
            Direction::Stay => false,
            direction => self.turn(direction).boxed().await,
        }
    }

    async fn turn(&mut self, direction: Direction) -> bool {
        match (self.route, &direction) {
            (Route::Slot(cluster, _), Direction::Doubt) => {
                cluster.doubt();
                return false;
            }
            _ if self.repeats == REPEATS_MAX => return false,
            (Route::Link(link), _) => link.renew(),
            (Route::Slot(cluster, _), Direction::Ask(address)) => {
                self.next = Some(Hop { link: cluster.link_to(address), is_asking: true });
            }
            (Route::Slot(cluster, _), Direction::Moved(Some(address))) => {
                self.next = Some(Hop { link: cluster.link_to(address), is_asking: false });
                self.read_map(cluster).await;
            }
            (Route::Slot(cluster, _), _) => self.read_map(cluster).await,
        }
        // Where it was sent to is not to be asked without a pause, whoever is.
        if self.next.is_none() || self.repeats > 1 {
            tokio::time::sleep(PAUSE * (1 << self.repeats)).await;
        }
        self.repeats += 1;
        true
    }

    async fn read_map(&self, cluster: &Cluster) {
        if let Err(error) = cluster.read_after(&cluster.known()).await {
            tracing::debug!(%error, "who serves the cluster cannot be found out");
        }
    }
}

impl Hop {
    pub(crate) async fn send(&self, cmd: &redis::Cmd) -> Result<Value> {
        if !self.is_asking {
            return self.link.send(cmd).await;
        }
        let mut packed = self.packed(2);
        packed.add_command(cmd.clone());
        let mut answers = self.link.send_all(&packed, 1, 1).await?;
        Value::from_redis(&self.link.server.shown, answers.pop().unwrap_or(redis::Value::Nil))
    }

    /// Sends two commands after each other, with nothing between them. Each has its own result.
    pub(crate) async fn send_both(
        &self,
        one: &redis::Cmd,
        two: &redis::Cmd,
    ) -> Result<(Result<Value>, Result<Value>)> {
        let mut packed = self.packed(4);
        packed.add_command(one.clone());
        if self.is_asking {
            packed.add_command(redis::cmd("ASKING"));
        }
        packed.add_command(two.clone());
        let (skipped, count) = if self.is_asking { (1, 3) } else { (0, 2) };
        let mut answers = self.link.send_all(&packed, skipped, count).await?;
        if self.is_asking {
            answers.remove(1);
        }
        let mut answers =
            answers.into_iter().map(|answer| Value::from_redis(&self.link.server.shown, answer));
        match (answers.next(), answers.next()) {
            (Some(one), Some(two)) => Ok((one, two)),
            _ => Err(Error::Protocol("fewer answers than commands".to_owned())),
        }
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
