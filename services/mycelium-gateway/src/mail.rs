//! Chat and mail between actors, on their way out and in.
//!
//! A message goes to the first of its recipient's addresses that accepts it: this coordinator, a node of the bus, or another
//! coordinator's `GatewayService.Deliver`. An incoming message must be signed by the coordinator that it names as its origin.
//! Storage puts each message into its recipient's inbox once, however often it arrives.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use envelope::{
    Conversation, Envelope, EnvelopeSigner, OnRefusal, OverflowPolicy, Refusal, ReplayWindowLimits, Sealer,
};
use futures_util::future::BoxFuture;
use identity::VerifyingKey;
use model::supervision::{GATEWAY_TOPIC, method};
use model::{Address, DirectMessage, DirectMessageAccepted, Timestamp};
use mycelium::json_rpc::{JsonRpcMessage, JsonRpcPayload, METHOD_NOT_FOUND, answer, parse, response};
use mycelium::{
    Bus, BusDestination, BusError, BusInbox, BusPeers, CallError, JsonRpcCall, JsonRpcError, JsonRpcHandler,
    JsonRpcPeer, JsonRpcRequest, JsonRpcResult, PeerAcceptor, PeerEndpoint, PublicKey,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::clients::{CoordinatorCallError, CoordinatorClients, MessageBoxClient, accept_letter};
use crate::delivery::{self, DeliveryFailure};
use crate::mail_policy::{MailAdmissionControl, MailAdmissionError, MailPolicy};
use crate::metrics::Metrics;

/// Incoming messages that are handled at once. Further ones are refused as `BUSY`, and their senders retry.
pub const MESSAGES_AT_ONCE_MAX: usize = 64;
/// Maximum number of other nodes of the bus with a mail conversation.
pub const CORRESPONDENTS_MAX: usize = 256;
/// How long storage may take to put a message into an inbox.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time for one address to answer, while so much is left: a lookup on the bus and a round trip.
const ADDRESS_TIME_MIN: Duration = Duration::from_secs(3);
/// Limits of the replay window for coordinators' envelopes: anyone can be a coordinator. Beyond the window, duplicates of mail are
/// recognized by their origin, and duplicates of answers by the number of the request.
const MEMORY: ReplayWindowLimits = ReplayWindowLimits {
    messages_per_root: 4_000,
    roots_max: CORRESPONDENTS_MAX,
    overflow: OverflowPolicy::EvictOldest,
};

/// Exchange of mail with other nodes and coordinators. Clones share it.
#[derive(Clone)]
pub struct MailExchanger(Arc<MailExchangerInner>);

struct MailExchangerInner {
    /// Signer of its own, so that other nodes' mail cannot hold up the conversations with supervisors.
    signer: Arc<EnvelopeSigner>,
    storage: MessageBoxClient,
    bus: Option<BusPeers>,
    coordinators: CoordinatorClients,
    at_once: Semaphore,
    /// Admission of incoming mail.
    gate: MailAdmissionControl,
    /// Counter that rotates the first address of mail with several addresses.
    tries: AtomicUsize,
    on_refusal: OnRefusal,
    metrics: Metrics,
}

/// Why a message did not arrive at one address.
#[derive(Debug, thiserror::Error)]
enum MailSendError {
    #[error(transparent)]
    Address(model::address::AddressError),
    #[error("NO_BUS: this gateway has no bus")]
    NoBus,
    #[error("{0}")]
    Bus(BusError),
    #[error("{}", delivery::call_error_text(.0))]
    Call(CallError),
    #[error("{0}")]
    Coordinator(CoordinatorCallError),
}

impl MailSendError {
    /// Returns true when a retry cannot help.
    fn is_lasting(&self) -> bool {
        match self {
            Self::Address(_) | Self::NoBus => true,
            Self::Bus(error) => matches!(error, BusError::TooLarge { .. } | BusError::BadTopic(_)),
            Self::Call(CallError::Refused(refused)) => refused.is_lasting(),
            Self::Call(error) => matches!(error, CallError::TooLarge(_)),
            Self::Coordinator(error) => error.is_lasting(),
        }
    }
}

impl From<JsonRpcError> for MailSendError {
    fn from(refused: JsonRpcError) -> Self {
        Self::Call(CallError::Refused(refused))
    }
}

/// Why an envelope received over gRPC is not answered.
#[derive(Debug, thiserror::Error)]
pub enum InboundMailError {
    /// The envelope is refused.
    #[error("{0}")]
    Refused(Refusal),
    /// The envelope holds something else than one request.
    #[error("the envelope has to hold one request of JSON-RPC 2.0")]
    NoRequest,
    /// Too many incoming messages are being handled.
    #[error("too many incoming messages are being handled; send it again later")]
    Busy,
    /// The sender exceeds a rate limit.
    #[error("{limit}: more than {max} messages in a minute")]
    TooFast {
        /// The name of the limit.
        limit: &'static str,
        /// Value of the limit.
        max: u32,
        /// Time until the next message is accepted.
        wait: Duration,
    },
}

/// Why a message was not accepted.
#[derive(Debug)]
enum MailRejection {
    /// The operator's policy does not admit the message.
    NotAdmitted(MailAdmissionError),
    /// Something else is wrong.
    Refused(JsonRpcError),
}

impl From<MailAdmissionError> for MailRejection {
    fn from(error: MailAdmissionError) -> Self {
        Self::NotAdmitted(error)
    }
}

impl From<JsonRpcError> for MailRejection {
    fn from(error: JsonRpcError) -> Self {
        Self::Refused(error)
    }
}

impl From<MailRejection> for JsonRpcError {
    fn from(error: MailRejection) -> Self {
        match error {
            MailRejection::NotAdmitted(error) => error.refusal(),
            MailRejection::Refused(error) => error,
        }
    }
}

impl MailExchanger {
    /// Creates an exchanger that signs with `sealer`, and stores incoming mail in `storage` where the policy admits it. Also
    /// returns its inbox on the bus.
    ///
    /// # Errors
    /// [`BusError::TopicTaken`] when the topic for mail has a listener already.
    pub fn new(
        sealer: Sealer,
        storage: MessageBoxClient,
        bus: Option<Arc<dyn Bus>>,
        dial: crate::dialing::Dial,
        policy: MailPolicy,
        metrics: Metrics,
    ) -> Result<(Self, Option<BusInbox>), BusError> {
        let own = sealer.root().to_string();
        let signer = EnvelopeSigner::with_replay_limits(sealer, vec![own], MEMORY);
        let counting = metrics.clone();
        let on_refusal: OnRefusal = Arc::new(move |refusal| counting.envelope_refused(refusal.code()));
        let inbox = bus.as_ref().map(|bus| bus.listen(GATEWAY_TOPIC)).transpose()?;
        let this = Arc::new_cyclic(|this: &std::sync::Weak<MailExchangerInner>| {
            let this = this.clone();
            let (peer_signer, refused) = (Arc::clone(&signer), Arc::clone(&on_refusal));
            let accept: PeerAcceptor = Arc::new(move |node: PublicKey| {
                let conversation = Conversation::new(Arc::clone(&peer_signer), Arc::clone(&refused));
                let conversation = Arc::new(conversation.with_name(node.to_string()));
                let guard = Arc::clone(&conversation);
                PeerEndpoint { handler: Arc::new(MailHandler { mail: this.clone(), conversation }), guard }
            });
            MailExchangerInner {
                bus: bus.map(|bus| BusPeers::evicting(bus, accept, CORRESPONDENTS_MAX)),
                coordinators: CoordinatorClients::new(dial, Arc::clone(&signer), Arc::clone(&on_refusal)),
                signer,
                storage,
                at_once: Semaphore::new(MESSAGES_AT_ONCE_MAX),
                gate: MailAdmissionControl::new(policy),
                tries: AtomicUsize::new(0),
                on_refusal,
                metrics,
            }
        });
        Ok((Self(this), inbox))
    }

    /// Returns the signer of mail.
    pub(crate) fn signer(&self) -> Arc<EnvelopeSigner> {
        Arc::clone(&self.0.signer)
    }

    /// Handles mail from the bus until the inbox ends.
    pub async fn listen(&self, inbox: BusInbox) {
        let Some(bus) = &self.0.bus else { return };
        let mut status = bus.bus().status();
        // A first message over the bus is addressed to our node, the only name its sender knows. A daemon may come back as another node.
        let mut known = None;
        let naming = async {
            while let Ok(now) = status.wait_for(|now| now.node.is_some() && now.key() != known).await {
                known = now.key();
                known.iter().for_each(|key| self.0.signer.add_name(key.to_string()));
            }
        };
        tokio::join!(naming, bus.run(inbox, GATEWAY_TOPIC));
    }

    /// Delivers a message, given as JSON, to the first of these addresses that accepts it; without addresses, to this coordinator.
    /// After the future is dropped it is unknown whether the message arrived.
    ///
    /// # Errors
    /// [`DeliveryFailure`], lasting when the failure at every address is lasting.
    pub async fn deliver(
        &self,
        letter_json: &[u8],
        addresses: &[String],
        timeout: Duration,
    ) -> Result<(), DeliveryFailure> {
        let failures = match serde_json::from_slice::<DirectMessage>(letter_json) {
            Ok(message) => self.try_all(addresses, message, Instant::now() + timeout).await,
            Err(error) => vec![(format!("the direct message cannot be read: {error}"), true)],
        };
        if failures.is_empty() {
            self.0.metrics.letters_sent.inc();
            return Ok(());
        }
        self.0.metrics.letters_failed.inc();
        // One address that may still accept the message is enough for a retry.
        let lasting = failures.iter().all(|(_, lasting)| *lasting);
        let errors: Vec<_> = failures.into_iter().map(|(error, _)| error).collect();
        Err(DeliveryFailure { error: errors.join("; "), lasting })
    }

    /// Tries the addresses in turn; returns the error of each, and whether it is lasting. Empty once the message was accepted.
    async fn try_all(
        &self,
        addresses: &[String],
        mut message: DirectMessage,
        deadline: Instant,
    ) -> Vec<(String, bool)> {
        // Outgoing mail has this coordinator as its origin; only the gateway knows the root key.
        message.origin.coordinator = self.0.signer.root().to_string();
        if addresses.is_empty() {
            let taken = self.take_own(&message).await.map_err(MailSendError::from);
            return taken.err().into_iter().map(|error| (error.to_string(), error.is_lasting())).collect();
        }
        let begin = begin(deadline.saturating_duration_since(Instant::now()), addresses.len(), || {
            self.0.tries.fetch_add(1, Ordering::Relaxed)
        });
        let (before, first) = addresses.split_at(begin);
        let mut failures = Vec::new();
        for (at, address) in first.iter().chain(before).enumerate() {
            let Some(share) = share(deadline.saturating_duration_since(Instant::now()), addresses.len() - at)
            else {
                failures.push((
                    format!("{address}: not tried, because the other addresses took all the time"),
                    false,
                ));
                continue;
            };
            match self.send(address, &message, Instant::now() + share).await {
                Ok(()) => return Vec::new(),
                Err(error) => failures.push((format!("{address}: {error}"), error.is_lasting())),
            }
        }
        failures
    }

    async fn send(
        &self,
        address: &str,
        message: &DirectMessage,
        deadline: Instant,
    ) -> Result<(), MailSendError> {
        match address.parse().map_err(MailSendError::Address)? {
            Address::MyceliumIp(ip) => {
                let node = self.node_of(ip, deadline).await?;
                self.send_to_node(node, message, deadline).await
            }
            Address::MyceliumKey(key) => {
                let error = || MailSendError::Address(model::address::AddressError(address.to_owned()));
                self.send_to_node(key.parse().map_err(|_| error())?, message, deadline).await
            }
            Address::Grpc { host, port } => {
                let call = JsonRpcCall::new(method::MESSAGE_DELIVER, message);
                let call =
                    call.map_err(|error| MailSendError::Call(CallError::Unwritable(error.to_string())))?;
                let answer = self.0.coordinators.call((&host, port), &call, deadline).await;
                answer.map(drop).map_err(MailSendError::Coordinator)
            }
        }
    }

    async fn node_of(&self, ip: Ipv6Addr, deadline: Instant) -> Result<PublicKey, MailSendError> {
        let bus = self.0.bus.as_ref().ok_or(MailSendError::NoBus)?.bus();
        let own = bus.status().borrow().node.clone().filter(|node| node.ip == Some(ip));
        if let Some(own) = own {
            return Ok(own.key);
        }
        match tokio::time::timeout_at(deadline, bus.key_of(ip)).await {
            Ok(found) => found.map_err(MailSendError::Bus),
            Err(_) => Err(MailSendError::Call(CallError::TimedOut)),
        }
    }

    async fn send_to_node(
        &self,
        node: PublicKey,
        message: &DirectMessage,
        deadline: Instant,
    ) -> Result<(), MailSendError> {
        let bus = self.0.bus.as_ref().ok_or(MailSendError::NoBus)?;
        if bus.bus().key() == Some(node) {
            // A daemon does not carry messages to its own node.
            self.take_own(message).await?;
            return Ok(());
        }
        let peer = bus.peer(BusDestination::Key(node), GATEWAY_TOPIC).await.map_err(MailSendError::Bus)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let taken = peer.call(method::MESSAGE_DELIVER, message, left).await;
        taken.map(drop).map_err(MailSendError::Call)
    }

    /// Answers an envelope received over gRPC. Anyone may send one; it must be signed, and takes only one of
    /// [`MESSAGES_AT_ONCE_MAX`] places.
    ///
    /// # Errors
    /// [`InboundMailError`]
    pub async fn receive_envelope(
        &self,
        envelope: Result<Envelope, Refusal>,
    ) -> Result<Envelope, InboundMailError> {
        let _place = self.0.at_once.try_acquire().map_err(|_| InboundMailError::Busy)?;
        let refused = |refusal: Refusal| {
            (self.0.on_refusal)(&refusal);
            InboundMailError::Refused(refusal)
        };
        let envelope = envelope.map_err(refused)?;
        let conversation = Conversation::new(Arc::clone(&self.0.signer), Arc::clone(&self.0.on_refusal));
        let body = conversation.verify(&envelope, Timestamp::now()).map_err(refused)?;
        let (Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Request(request)))), Some(root)) =
            (parse(&body), conversation.root())
        else {
            return Err(InboundMailError::NoRequest);
        };
        let id = request.id.clone().ok_or(InboundMailError::NoRequest)?;
        let answer = match self.handle(&request, root).await {
            Err(MailRejection::NotAdmitted(MailAdmissionError::TooFast { limit, max, wait })) => {
                return Err(InboundMailError::TooFast { limit, max, wait });
            }
            handled => answer_of(handled),
        };
        conversation.sign(&response(Some(&id), &answer), Timestamp::now()).map_err(refused)
    }

    /// Handles a request of the coordinator with this root.
    async fn handle(
        &self,
        request: &JsonRpcRequest,
        root: VerifyingKey,
    ) -> Result<DirectMessageAccepted, MailRejection> {
        if request.method != method::MESSAGE_DELIVER {
            let message = format!("there is no method `{}`", request.method);
            return Err(JsonRpcError::of_protocol(METHOD_NOT_FOUND, message).into());
        }
        self.take(&request.read()?, root).await
    }

    /// Accepts a message from this coordinator to itself.
    async fn take_own(&self, message: &DirectMessage) -> Result<DirectMessageAccepted, JsonRpcError> {
        Ok(self.take(message, self.0.signer.root()).await?)
    }

    /// Accepts a message that the coordinator with this root has signed.
    async fn take(
        &self,
        message: &DirectMessage,
        root: VerifyingKey,
    ) -> Result<DirectMessageAccepted, MailRejection> {
        let is_foreign = root != self.0.signer.root();
        let taken = async {
            if is_foreign {
                self.0.gate.admit_root(root)?;
            }
            let verified = check(message, root, Timestamp::now())?;
            if is_foreign {
                self.0.gate.admit(message, root, verified, Instant::now())?;
            }
            let accepting = accept_letter(&self.0.storage, message, verified, is_foreign);
            let accepted = tokio::time::timeout(ACCEPT_TIMEOUT, accepting).await;
            let silent = || Err(JsonRpcError::refused("UNAVAILABLE", false, "storage does not answer"));
            Ok::<_, MailRejection>(accepted.unwrap_or_else(|_| silent())?)
        };
        match taken.await {
            Ok(()) => {
                self.0.metrics.letters_taken.inc();
                Ok(DirectMessageAccepted { accepted: true })
            }
            Err(refused) => {
                self.0.metrics.letters_refused.inc();
                Err(refused)
            }
        }
    }
}

fn answer_of(handled: Result<DirectMessageAccepted, MailRejection>) -> JsonRpcResult {
    answer(&handled?)
}

/// Returns the index of the address to try first: 0 while there is time for all addresses, else another one each time.
fn begin(left: Duration, addresses: usize, next: impl FnOnce() -> usize) -> usize {
    let needed = ADDRESS_TIME_MIN.saturating_mul(u32::try_from(addresses).unwrap_or(u32::MAX));
    if needed <= left { 0 } else { next() % addresses }
}

/// Returns the time for one address, out of the time left for all: an unreachable address must not use up the time of the others, but
/// each gets enough to answer. An address for which no time is left comes first in a later try.
fn share(left: Duration, addresses: usize) -> Option<Duration> {
    let even = left / u32::try_from(addresses).unwrap_or(u32::MAX);
    (!left.is_zero()).then(|| even.max(ADDRESS_TIME_MIN).min(left))
}

/// Checks that a message comes from the coordinator it names; returns true when its sender has signed it.
fn check(message: &DirectMessage, root: VerifyingKey, now: Timestamp) -> Result<bool, JsonRpcError> {
    if message.origin.coordinator != root.to_string() {
        let text = format!("{root} has signed the message, but its origin names another coordinator");
        return Err(JsonRpcError::refused("WRONG_ORIGIN", true, text));
    }
    if message.expires_at <= now {
        return Err(JsonRpcError::refused("EXPIRED", true, "the message has expired"));
    }
    match envelope::actor::check_direct_message(message, now) {
        Ok(signed) => Ok(signed.is_some()),
        Err(refusal) => {
            let text = format!("its sender's signature: {refusal}");
            Err(JsonRpcError::refused("BAD_SIGNATURE", true, text))
        }
    }
}

/// Answers one node of the bus.
struct MailHandler {
    mail: std::sync::Weak<MailExchangerInner>,
    conversation: Arc<Conversation>,
}

impl JsonRpcHandler for MailHandler {
    fn handle(
        &self,
        _: &JsonRpcPeer,
        requests: Vec<JsonRpcRequest>,
    ) -> BoxFuture<'static, Vec<JsonRpcResult>> {
        let (exchanger, root) = (self.mail.upgrade().map(MailExchanger), self.conversation.root());
        Box::pin(async move {
            let busy = || Err(JsonRpcError::refused("BUSY", false, InboundMailError::Busy.to_string()));
            let (Some(exchanger), Some(root)) = (exchanger, root) else {
                return requests.iter().map(|_| busy()).collect();
            };
            // Handles the requests one after the other: a batch takes one place only.
            let place = exchanger.0.at_once.try_acquire();
            let mut answers = Vec::with_capacity(requests.len());
            for request in &requests {
                answers.push(match place {
                    Ok(_) => answer_of(exchanger.handle(request, root).await),
                    Err(_) => busy(),
                });
            }
            answers
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::SigningKey;
    use model::id::Uid;
    use model::{ActorId, ContextUid, DirectMessageOrigin, MessageFormat, MessageId, MessageType};

    #[test]
    fn each_address_has_enough_to_answer_while_time_is_left() {
        let secs = Duration::from_secs;
        assert_eq!(share(secs(10), 2), Some(secs(5)));
        assert_eq!(share(secs(10), 8), Some(secs(3)), "no less than a look-up takes");
        assert_eq!(share(secs(1), 5), Some(secs(1)), "what there is");
        assert_eq!(share(Duration::ZERO, 4), None);
        assert_eq!(begin(secs(10), 3, || 4), 0, "in their order while there is time for all");
        assert_eq!(
            (begin(secs(10), 4, || 5), begin(secs(10), 4, || 6)),
            (1, 2),
            "else each comes first once"
        );
    }

    #[test]
    fn a_message_must_match_its_origin_and_must_not_have_expired() {
        let (root, other) = (SigningKey::generate().verifying_key(), SigningKey::generate().verifying_key());
        let now = Timestamp::from_millis(1_800_000_000_000);
        let message = DirectMessage {
            origin: DirectMessageOrigin {
                coordinator: root.to_string(),
                context_uid: ContextUid(Uid::from_bits(1)),
                caller_id: ActorId(1),
                message_id: MessageId(1),
            },
            from: other.to_string(),
            to: other.to_string(),
            target_context: None,
            message_type: MessageType::Chat,
            format: MessageFormat::Text,
            topic: String::new(),
            text: "hello".into(),
            created_at: now,
            expires_at: now + Duration::from_secs(1),
            signature: None,
        };
        let reason = |message: &DirectMessage, root, now| {
            check(message, root, now).map_err(|refused| (refused.reason().to_owned(), refused.is_lasting()))
        };
        let refused = |reason: &str| Err((reason.to_owned(), true));
        assert_eq!(reason(&message, root, now), Ok(false));
        assert_eq!(reason(&message, other, now), refused("WRONG_ORIGIN"));
        assert_eq!(reason(&message, root, message.expires_at), refused("EXPIRED"));
        let forged = DirectMessage { signature: Some("{}".into()), ..message };
        assert_eq!(reason(&forged, root, now), refused("BAD_SIGNATURE"));
    }
}
