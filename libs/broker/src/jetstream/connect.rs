//! One connection after the other, each with a client of its own.
//!
//! The client of `async-nats` reconnects by itself. It would then send its queue on the new connection although earlier
//! messages were lost with the old one, so a later message would be stored before an earlier one is sent again. Deliveries
//! would continue silently. Here a client therefore has one connection: its reconnect address leads nowhere, and its queue
//! is dropped with it.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectOptions, ReconnectToServer, ServerAddr, ServerInfo, Subscriber};
use backoff::ExponentialBackoff;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::api::chain;
use super::{ANSWER_TIMEOUT, JetStreamLogin, JetStreamOptions};
use crate::receipt::AckSink;
use crate::{BrokerConnectionStatus, BrokerError};

/// Reconnect address of a client that has lost its connection: nothing listens on port 0.
const NOWHERE: &str = "nats://127.0.0.1:0";
/// Timeout of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of pings to the server. After two without an answer the connection is closed.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Shortest interval of heartbeats.
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
/// Commands that the client has not looked at yet.
const COMMANDS_MAX: usize = 1024;
/// Unread messages of one subscription; later ones are dropped.
const UNREAD_MAX: usize = 1024;
/// Acknowledgements that wait to be sent.
const ACKNOWLEDGEMENTS_MAX: usize = 16 * 1024;
/// Messages without an acknowledgement.
const UNACKNOWLEDGED_MAX: usize = 16 * 1024;

/// A connection, as long as it lasts.
pub(super) struct NatsLink {
    pub(super) client: Client,
    pub(super) context: async_nats::jetstream::Context,
    pub(super) info: ServerInfo,
    acknowledgements: mpsc::Sender<Acknowledgement>,
}

/// Acknowledgement that waits to be sent.
struct Acknowledgement {
    subject: String,
    payload: &'static [u8],
}

/// Sends acknowledgements after other queued messages, until the connection ends.
async fn send_acknowledgements(client: Client, mut waiting: mpsc::Receiver<Acknowledgement>) {
    while let Some(Acknowledgement { subject, payload }) = waiting.recv().await {
        if client.publish(subject, Bytes::from_static(payload)).await.is_err() {
            return;
        }
    }
}

impl NatsLink {
    pub(super) async fn subscribe(&self, what: &str, subject: &str) -> Result<Subscriber, BrokerError> {
        let subscribed = timeout(ANSWER_TIMEOUT, self.client.subscribe(subject.to_owned())).await;
        let why = match subscribed {
            Ok(Ok(subscriber)) => return Ok(subscriber),
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("nothing can be sent for {ANSWER_TIMEOUT:?}"),
        };
        Err(BrokerError::Unavailable { what: what.to_owned(), why })
    }

    /// Sends a message whose arrival is not confirmed.
    pub(super) async fn send(
        &self,
        what: &str,
        subject: &str,
        reply: Option<&str>,
        payload: Bytes,
    ) -> Result<(), BrokerError> {
        let subject = subject.to_owned();
        let sending = async {
            match reply {
                Some(reply) => self.client.publish_with_reply(subject, reply.to_owned(), payload).await,
                None => self.client.publish(subject, payload).await,
            }
        };
        let why = match timeout(ANSWER_TIMEOUT, sending).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("nothing can be sent for {ANSWER_TIMEOUT:?}"),
        };
        Err(BrokerError::Unavailable { what: what.to_owned(), why })
    }
}

/// Acknowledgements of messages that came over a connection. Holds no client: receipts may outlive it.
pub(super) struct NatsAckSink(pub(super) Weak<NatsLink>);

impl NatsAckSink {
    fn send(&self, subject: &str, payload: &'static [u8]) {
        if let Some(link) = self.0.upgrade() {
            // One that does not fit the queue is dropped: correctness does not depend on acknowledgements.
            let _ = link.acknowledgements.try_send(Acknowledgement { subject: subject.to_owned(), payload });
        }
    }
}

impl AckSink for NatsAckSink {
    fn ack(&self, token: &str) {
        self.send(token, b"+ACK");
    }

    fn progress(&self, token: &str) {
        self.send(token, b"+WPI");
    }
}

/// Connection that there is, or the reason why there is none.
enum NatsLinkState {
    Up(Arc<NatsLink>),
    Down(String),
}

/// Keeps a connection open for as long as the connector exists.
pub(super) struct Connector {
    state: watch::Receiver<NatsLinkState>,
    connection: watch::Receiver<BrokerConnectionStatus>,
    task: JoinHandle<()>,
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connector {
    pub(super) fn start(options: JetStreamOptions) -> Result<Self, BrokerError> {
        let refused = |why: String| BrokerError::Refused { what: "connecting to NATS".to_owned(), why };
        if options.urls.is_empty() {
            return Err(refused("no URL is given".to_owned()));
        }
        if options.heartbeat < HEARTBEAT_MIN {
            return Err(refused(format!(
                "a heartbeat of {:?} is below {HEARTBEAT_MIN:?}",
                options.heartbeat
            )));
        }
        // A URL may contain a password, so the error names it by its position.
        let parse = |(at, url): (usize, &String)| {
            url.parse().map_err(|error| refused(format!("URL {} cannot be read: {error}", at + 1)))
        };
        let urls = options.urls.iter().enumerate().map(parse).collect::<Result<Vec<ServerAddr>, _>>()?;
        if let Some(at) = urls.iter().position(ServerAddr::has_user_pass) {
            return Err(refused(format!("URL {} has a user in it: give the login by itself", at + 1)));
        }
        let nowhere = NOWHERE.parse().map_err(|error| refused(format!("{NOWHERE}: {error}")))?;
        let (state_tx, state) = watch::channel(NatsLinkState::Down("it has not been reached yet".to_owned()));
        let (connection_tx, connection) = watch::channel(BrokerConnectionStatus::default());
        let reconnector = Reconnector { options, urls, nowhere, state: state_tx, connection: connection_tx };
        Ok(Self { state, connection, task: tokio::spawn(reconnector.run()) })
    }

    /// Gives the connection that there is now.
    pub(super) fn link(&self, what: &str) -> Result<Arc<NatsLink>, BrokerError> {
        match &*self.state.borrow() {
            NatsLinkState::Up(link) => Ok(Arc::clone(link)),
            NatsLinkState::Down(why) => {
                Err(BrokerError::Unavailable { what: what.to_owned(), why: why.clone() })
            }
        }
    }

    pub(super) fn connection(&self) -> watch::Receiver<BrokerConnectionStatus> {
        self.connection.clone()
    }
}

/// The task that connects again and again.
struct Reconnector {
    options: JetStreamOptions,
    urls: Vec<ServerAddr>,
    nowhere: ServerAddr,
    state: watch::Sender<NatsLinkState>,
    connection: watch::Sender<BrokerConnectionStatus>,
}

impl Reconnector {
    async fn run(self) {
        let mut backoff = ExponentialBackoff::up_to(PAUSE_MAX);
        let mut generation = 0;
        for url in self.urls.iter().cycle() {
            match self.dial(url).await {
                Ok((link, lost)) => {
                    generation += 1;
                    tracing::info!(url = %shown(url), version = link.info.version, generation, "NATS is connected");
                    let _ = self.state.send_replace(NatsLinkState::Up(Arc::new(link)));
                    self.connection.send_replace(BrokerConnectionStatus { connected: true, generation });
                    let begin = Instant::now();
                    // An error means that the client has ended, and its connection with it.
                    let _ = lost.await;
                    // A server that closes the connection at once is redialed only after a pause.
                    if begin.elapsed() > PAUSE_MAX {
                        backoff.reset();
                    }
                    self.down(generation, format!("the connection to {} was lost", shown(url)));
                }
                Err(why) => {
                    self.down(generation, format!("{} cannot be reached: {why}", shown(url)));
                }
            }
            backoff.pause().await;
        }
    }

    fn down(&self, generation: u64, why: String) {
        let was_up = matches!(*self.state.borrow(), NatsLinkState::Up(_));
        if was_up {
            tracing::warn!(%why, "NATS is not connected");
        } else {
            tracing::debug!(%why, "NATS is not connected");
        }
        self.state.send_replace(NatsLinkState::Down(why));
        self.connection.send_if_modified(|connection| {
            let before = *connection;
            *connection = BrokerConnectionStatus { connected: false, generation };
            *connection != before
        });
    }

    /// Makes a client for one connection, and returns a receiver that ends when the connection is lost.
    async fn dial(&self, url: &ServerAddr) -> Result<(NatsLink, oneshot::Receiver<()>), String> {
        let (lost, is_lost) = oneshot::channel();
        let first_way = (url.clone(), lost);
        let (first_way, nowhere) = (Mutex::new(Some(first_way)), self.nowhere.clone());
        let lost = Mutex::new(None);
        // Called before every attempt to connect: the first leads to the server, and the next means that the connection was
        // lost.
        let way = move |_, _| {
            let first = first_way.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
            let addr = match first {
                Some((url, sender)) => {
                    *lost = Some(sender);
                    url
                }
                None => {
                    drop(lost.take());
                    nowhere.clone()
                }
            };
            std::future::ready(Some(ReconnectToServer { addr, delay: Some(Duration::ZERO) }))
        };
        let options = self.connect_options().reconnect_to_server_callback(way);
        let client = options.connect(vec![url.clone(), self.nowhere.clone()]).await;
        let client = client.map_err(|error| chain(&error))?;
        let context = ContextBuilder::new()
            .timeout(ANSWER_TIMEOUT)
            .ack_timeout(ANSWER_TIMEOUT)
            .max_ack_inflight(UNACKNOWLEDGED_MAX)
            .build(client.clone());
        let info = client.server_info();
        let (acknowledgements, waiting) = mpsc::channel(ACKNOWLEDGEMENTS_MAX);
        // Ends with the link, or at the first acknowledgement after the end of the connection.
        tokio::spawn(send_acknowledgements(client.clone(), waiting));
        Ok((NatsLink { client, context, info, acknowledgements }, is_lost))
    }

    fn connect_options(&self) -> ConnectOptions {
        let mut options = ConnectOptions::new()
            .name(&self.options.name)
            .max_reconnects(1)
            .ignore_discovered_servers()
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .client_capacity(COMMANDS_MAX)
            .subscription_capacity(UNREAD_MAX);
        options = match &self.options.login {
            None => options,
            Some(JetStreamLogin::Password { user, password }) => {
                options.user_and_password(user.clone(), password.clone())
            }
            Some(JetStreamLogin::Token(token)) => options.token(token.clone()),
        };
        if let Some(tls) = &self.options.tls {
            options = options.require_tls(true);
            if let Some(ca) = &tls.ca {
                options = options.add_root_certificates(ca.clone());
            }
            if let Some((certificate, key)) = &tls.identity {
                options = options.add_client_certificate(certificate.clone(), key.clone());
            }
        }
        options
    }
}

/// Shows the host and port of a URL, without the user and password that may stand in it.
fn shown(url: &ServerAddr) -> String {
    format!("{}:{}", url.host(), url.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_can_never_work_is_refused_at_once() {
        for (urls, part) in [
            (vec![], "no URL"),
            (vec!["nats://[".to_owned()], "URL 1 cannot be read"),
            (vec!["nats://ann:secret@localhost".to_owned()], "URL 1 has a user in it"),
        ] {
            let refused =
                Connector::start(JetStreamOptions { urls, ..JetStreamOptions::new("nats://localhost") })
                    .map(drop);
            let Err(error @ BrokerError::Refused { .. }) = refused else { panic!("{part}: {refused:?}") };
            assert!(error.to_string().contains(part), "{error}");
        }
        let options = JetStreamOptions {
            heartbeat: Duration::from_millis(99),
            ..JetStreamOptions::new("nats://localhost")
        };
        let refused = Connector::start(options).map(drop);
        assert!(matches!(refused, Err(BrokerError::Refused { .. })), "{refused:?}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let login = JetStreamLogin::Password { user: "ann".to_owned(), password: "secret".to_owned() };
        assert_eq!(
            format!("{login:?} {:?}", JetStreamLogin::Token("secret".to_owned())),
            "Password { user: \"ann\", .. } Token(..)"
        );
        let url: ServerAddr = "nats://ann:secret@example.com".parse().expect("a URL");
        assert_eq!(shown(&url), "example.com:4222");
    }
}
