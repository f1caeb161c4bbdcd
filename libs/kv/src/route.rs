//! To whom something is sent, and to whom then, when it was not done there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::cluster::Cluster;
use crate::confirm::{Answered, Terms};
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
                Error::UnknownOutcome { .. } | Error::Unfit { .. } => Direction::Doubt,
                Error::Oom(_) | Error::DiskFull(_) | Error::Protocol(_) => Direction::Stay,
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

    async fn read_map(&self, cluster: &Arc<Cluster>) {
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

    /// Makes a change, and gives its answer when it is kept as `terms` has it. It is about `key`.
    pub(crate) async fn change(&self, call: &redis::Cmd, key: &str, terms: Terms<'_>) -> Result<Value> {
        let mut known = self.link.known().await?;
        let mut asked = terms(&known.process.setup);
        if asked.is_err() {
            // It may have been set up since.
            known = self.link.known_anew().await?;
            asked = terms(&known.process.setup);
        }
        let asked = asked.map_err(|reason| {
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
        if let Some(confirm) = asked {
            let (key, process) = (key.to_owned(), Arc::clone(&known.process));
            let change = Answered { confirm, key, is_asking: self.is_asking, process };
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
