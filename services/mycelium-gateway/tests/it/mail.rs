//! Letters arrive wherever their recipients are, and only from whom they say they are.

use std::sync::Arc;
use std::time::Duration;

use envelope::actor::{DirectMessageTerms, sign_direct_message};
use envelope::{Envelope, Sealer};
use identity::{Identity, SigningKey};
use model::address_rules::AddressRules;
use model::id::Uid;
use model::supervision::{GATEWAY_TOPIC, method};
use model::{
    ActorId, ContextUid, DirectMessage, DirectMessageOrigin, MessageFormat, MessageId, MessageType, Timestamp,
};
use mycelium::daemon::{Config as BusConfig, Metrics as BusMetrics};
use mycelium::json_rpc::{JsonRpcMessage, JsonRpcPayload, parse, request};
use mycelium::{
    Bus, BusDestination, DaemonBus, Datagram, JsonRpcCall, MemoryNetwork, PayloadForm, PublicKey,
};
use mycelium_gateway::mail_policy::{MailPolicy, STRANGER_MESSAGES_PER_MINUTE_MAX, StrangerMailPolicy};
use proto::convert::envelope as envelope_convert;
use proto::internal::v1 as wire;
use proto::internal::v1::exchange_request::Frame;
use proto::v1;
use proto::v1::gateway_service_client::GatewayServiceClient;
use rpc::ErrorView;
use stand_in::{Overlay, StandIn, Traps};
use testkit::{PATIENCE, wait_until};
use tonic::{Code, Status};

use crate::coordinator::{Coordinator, CoordinatorOptions};

const HOUR: Duration = Duration::from_secs(3600);

/// A letter by this actor; what coordinator it is from, its gateway says.
fn direct_message(number: u32, from: &SigningKey, signed: bool) -> DirectMessage {
    let now = Timestamp::now();
    let mut direct_message = DirectMessage {
        origin: DirectMessageOrigin {
            coordinator: String::new(),
            context_uid: ContextUid(Uid::from_bits(1)),
            caller_id: ActorId(1),
            message_id: MessageId(number),
        },
        from: from.verifying_key().to_string(),
        to: SigningKey::generate().verifying_key().to_string(),
        target_context: None,
        message_type: MessageType::Mail,
        format: MessageFormat::Md,
        topic: "topic".into(),
        text: "hello \"you\"\n".repeat(2000),
        created_at: now,
        expires_at: now + HOUR,
        signature: None,
    };
    if signed {
        let terms = DirectMessageTerms {
            to: &direct_message.to,
            target_context: direct_message.target_context,
            message_type: direct_message.message_type,
            format: direct_message.format,
            topic: &direct_message.topic,
            text: &direct_message.text,
        };
        direct_message.signature = Some(sign_direct_message(&terms, from, now + HOUR));
    }
    direct_message
}

fn deliver(delivery_id: u64, direct_message: &DirectMessage, addresses: &[String]) -> Frame {
    Frame::Letter(wire::DeliverLetter {
        delivery_id,
        addresses: addresses.to_vec(),
        letter_json: serde_json::to_vec(direct_message).expect("JSON").into(),
        timeout_millis: 20_000,
    })
}

/// Sends letters and looks at what the recipient's coordinator has of it.
async fn letters_arrive(from: &Coordinator, to: &Coordinator, addresses: &[String]) {
    let actor = SigningKey::generate();
    let mut router = from.router().await;
    let (signed, unsigned) = (direct_message(1, &actor, true), direct_message(2, &actor, false));
    for (delivery, direct_message) in [(1, &signed), (2, &unsigned), (3, &signed)] {
        router.says(deliver(delivery, direct_message, addresses)).await;
        let outcome = router.delivered(delivery).await;
        assert_eq!((outcome.error.as_str(), outcome.lasting), ("", false));
    }
    let (taken, duplicates) = to.inbox.taken();
    assert_eq!(duplicates, 1, "the first came twice");
    let coordinator = from.root_text();
    for ((direct_message, verified), sent) in taken.iter().zip([&signed, &unsigned]) {
        assert_eq!(direct_message.origin.coordinator, coordinator, "its gateway says where it is from");
        let origin = DirectMessageOrigin { coordinator: coordinator.clone(), ..sent.origin.clone() };
        assert_eq!(*direct_message, DirectMessage { origin, ..sent.clone() });
        assert_eq!(*verified, sent.signature.is_some());
    }
    assert_eq!(taken.len(), 2);

    // Somebody puts another text into it, or another name under it.
    let forged = DirectMessage { text: "something else".into(), ..signed.clone() };
    let stolen = DirectMessage { from: SigningKey::generate().verifying_key().to_string(), ..signed.clone() };
    let late = DirectMessage { expires_at: Timestamp::from_millis(1), ..direct_message(3, &actor, false) };
    for (delivery, direct_message, reason) in
        [(4, forged, "BAD_SIGNATURE"), (5, stolen, "BAD_SIGNATURE"), (6, late, "EXPIRED")]
    {
        router.says(deliver(delivery, &direct_message, addresses)).await;
        let outcome = router.delivered(delivery).await;
        assert!(outcome.lasting && outcome.error.contains(reason), "{outcome:?}");
    }
    // What storage refuses is refused by name, for good or for now.
    for (delivery, reason, lasting) in [(7, "UNKNOWN_RECIPIENT", true), (8, "INBOX_FULL", false)] {
        to.inbox.refuse(reason, lasting);
        router.says(deliver(delivery, &unsigned, addresses)).await;
        let outcome = router.delivered(delivery).await;
        assert!(outcome.lasting == lasting && outcome.error.contains(reason), "{outcome:?}");
        assert!(outcome.error.len() < 1000, "nobody fills the store of another with refusals");
    }
    assert_eq!(to.inbox.taken().0.len(), 2);
}

#[tokio::test]
async fn letters_arrive_here() {
    let here = Coordinator::start(CoordinatorOptions::default()).await;
    letters_arrive(&here, &here, &[]).await;
}

#[tokio::test]
async fn the_own_address_on_a_bus_is_here() {
    let network = MemoryNetwork::default();
    let node = network.node(PublicKey::random());
    let addresses = [format!("mycelium:{}", node.key()), format!("mycelium:[{}]", node.ip())];
    for address in addresses {
        let bus: Arc<dyn Bus> = Arc::new(network.node(node.key()));
        let here =
            Coordinator::start(CoordinatorOptions { bus: Some(bus), ..CoordinatorOptions::default() }).await;
        letters_arrive(&here, &here, &[address]).await;
    }
}

#[tokio::test]
async fn letters_arrive_over_a_bus_in_memory() {
    let network = MemoryNetwork::default();
    let [a, b] = [(); 2].map(|()| network.node(PublicKey::random()));
    let address = format!("mycelium:{}", b.key());
    let here =
        Coordinator::start(CoordinatorOptions { bus: Some(Arc::new(a)), ..CoordinatorOptions::default() })
            .await;
    let there =
        Coordinator::start(CoordinatorOptions { bus: Some(Arc::new(b)), ..CoordinatorOptions::default() })
            .await;
    letters_arrive(&here, &there, &[address]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_arrive_over_daemons_with_every_bad_habit() {
    let overlay = Overlay::default();
    let daemons = [(); 2].map(|()| StandIn::start(&overlay, Traps::ARMED));
    let buses: [Arc<dyn Bus>; 2] = daemons.each_ref().map(|daemon| {
        let metrics = BusMetrics::new(&prometheus::Registry::new()).expect("new names");
        let bus = DaemonBus::start(&BusConfig::new(daemon.url("ws")), metrics).expect("a url");
        Arc::new(bus) as Arc<dyn Bus>
    });
    let [a, b] = buses;
    let key = wait_until(async || b.key(), PATIENCE, "the bus is up").await;
    let here = Coordinator::start(CoordinatorOptions { bus: Some(a), ..CoordinatorOptions::default() }).await;
    let there =
        Coordinator::start(CoordinatorOptions { bus: Some(b), ..CoordinatorOptions::default() }).await;
    letters_arrive(&here, &there, &[format!("mycelium:{key}")]).await;

    let mut gateway = GatewayServiceClient::new(here.channel(Identity::Admin));
    let mut ping = async |address| gateway.ping_peer(v1::PingPeerRequest { address }).await;
    let pong = ping(format!("mycelium:{key}")).await.expect("it is there").into_inner();
    assert_eq!(pong.node, key.to_string());
    let nobody = ping(format!("mycelium:{}", PublicKey::random())).await.expect_err("nobody is there");
    assert_eq!(nobody.code(), Code::Unavailable);
}

#[tokio::test]
async fn letters_arrive_over_grpc_with_an_authority_of_their_own() {
    let there = Coordinator::start(CoordinatorOptions::default()).await;
    let others = Some(there.authority.ca());
    let here = Coordinator::start(CoordinatorOptions { others, ..CoordinatorOptions::default() }).await;
    letters_arrive(&here, &there, &[there.grpc()]).await;
}

#[tokio::test]
async fn addresses_are_tried_in_their_order() {
    let network = MemoryNetwork::default();
    let [a, b] = [(); 2].map(|()| network.node(PublicKey::random()));
    let there_address = format!("mycelium:{}", b.key());
    let here =
        Coordinator::start(CoordinatorOptions { bus: Some(Arc::new(a)), ..CoordinatorOptions::default() })
            .await;
    let there =
        Coordinator::start(CoordinatorOptions { bus: Some(Arc::new(b)), ..CoordinatorOptions::default() })
            .await;
    let nobody = format!("mycelium:{}", PublicKey::random());
    let closed = format!("grpc://127.0.0.1:{}", testkit::free_port());
    let mut router = here.router().await;
    let actor = SigningKey::generate();
    let all = [nobody.clone(), closed.clone(), "nonsense".to_owned(), there_address.clone()];
    router.says(deliver(1, &direct_message(1, &actor, false), &all)).await;
    assert_eq!(router.outcome(1).await, "");
    assert_eq!(there.inbox.taken().0.len(), 1);
    // Each says why not; one that may be there later is a reason to try again.
    router.says(deliver(2, &direct_message(2, &actor, false), &all[..3])).await;
    let outcome = router.delivered(2).await;
    assert!(!outcome.lasting, "{outcome:?}");
    for address in &all[..3] {
        assert!(outcome.error.contains(address.as_str()), "{outcome:?}");
    }
    router.says(deliver(3, &direct_message(3, &actor, false), &all[2..3])).await;
    assert!(router.delivered(3).await.lasting, "an address that is none stays none");
    let json = Frame::Letter(wire::DeliverLetter { delivery_id: 4, ..Default::default() });
    router.says(json).await;
    let outcome = router.delivered(4).await;
    assert!(outcome.lasting && outcome.error.contains("the direct message cannot be read"), "{outcome:?}");
}

/// Makes a letter from `sealer` to the coordinator with this root.
fn say(sealer: &Sealer, to: &str, direct_message: &DirectMessage) -> v1::DeliverRequest {
    let call = JsonRpcCall::new(method::MESSAGE_DELIVER, direct_message).expect("JSON");
    let sealed = sealer.seal(to, &request(7, &call), Timestamp::now(), Duration::from_secs(60));
    v1::DeliverRequest { envelope: Some(envelope_convert::to_wire(sealed.expect("JSON"))) }
}

#[tokio::test]
async fn who_has_no_certificate_may_deliver_and_nothing_else() {
    let there = Coordinator::start(CoordinatorOptions::default()).await;
    let mut anybody = GatewayServiceClient::new(there.anybody());
    let refused = anybody.get_gateway(v1::GetGatewayRequest {}).await.expect_err("not for everybody");
    assert_eq!(refused.code(), Code::Unauthenticated);
    let refused = anybody.ping_peer(v1::PingPeerRequest::default()).await.expect_err("not for everybody");
    assert_eq!(refused.code(), Code::Unauthenticated);

    let unsealed = anybody.deliver(v1::DeliverRequest { envelope: None }).await.expect("open").into_inner();
    assert_eq!((unsealed.coordinator, unsealed.envelope), (there.root_text(), None));
    let stranger = Sealer::of_root(SigningKey::generate());
    let mut mail = direct_message(1, &SigningKey::generate(), true);
    mail.origin.coordinator = stranger.root().to_string();
    let sealed = say(&stranger, &there.root_text(), &mail);
    let answer = anybody.deliver(sealed.clone()).await.expect("heard").into_inner();
    let envelope = envelope_convert::from_wire(answer.envelope.expect("signed")).expect("an envelope");
    let own = stranger.root().to_string();
    let opened =
        envelope::open_envelope(&envelope, std::slice::from_ref(&own), Timestamp::now()).expect("for us");
    assert_eq!(opened.root, there.root.verifying_key());
    assert_eq!(opened.signer, there.key.verifying_key());
    let Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Response(response)))) = parse(&opened.body) else {
        panic!("an answer")
    };
    assert!(response.answer.is_ok());

    // The same again, for somebody else, changed, or of another coordinator than it says.
    let other = say(&stranger, &SigningKey::generate().verifying_key().to_string(), &mail);
    let mut changed = say(&stranger, &there.root_text(), &mail);
    changed.envelope.as_mut().expect("there").signatures[0].sig = vec![0; 64].into();
    for (request, refusal) in [(sealed, "REPLAYED"), (other, "WRONG_DESTINATION"), (changed, "BAD_SIGNATURE")]
    {
        let status = anybody.deliver(request).await.expect_err("not heard");
        let view = ErrorView::from(&status);
        assert_eq!((status.code(), view.reason.as_str()), (Code::PermissionDenied, "ENVELOPE_REFUSED"));
        assert_eq!(view.metadata["refusal"], refusal);
    }
    let liar = Sealer::of_root(SigningKey::generate());
    let answer = anybody.deliver(say(&liar, &there.root_text(), &mail)).await.expect("heard").into_inner();
    let envelope = envelope_convert::from_wire(answer.envelope.expect("signed")).expect("an envelope");
    let text = String::from_utf8_lossy(&envelope.payload).into_owned();
    assert!(text.contains("WRONG_ORIGIN"), "{text}");
    assert_eq!(there.inbox.taken().0.len(), 1);
}

#[tokio::test]
async fn strangers_learn_nothing_of_how_it_fails_here() {
    let there = Coordinator::start(CoordinatorOptions::default()).await;
    let stranger = Sealer::of_root(SigningKey::generate());
    let mut mail = direct_message(1, &SigningKey::generate(), true);
    mail.origin.coordinator = stranger.root().to_string();
    for status in
        [Status::unavailable("10.0.0.1:7701 is away"), Status::permission_denied("10.0.0.1 says no")]
    {
        there.inbox.fail(status);
        let mut anybody = GatewayServiceClient::new(there.anybody());
        let sealed = say(&stranger, &there.root_text(), &mail);
        let answer = anybody.deliver(sealed).await.expect("heard").into_inner();
        let envelope = envelope_convert::from_wire(answer.envelope.expect("signed")).expect("an envelope");
        let own = stranger.root().to_string();
        let opened = envelope::open_envelope(&envelope, &[own], Timestamp::now()).expect("for us");
        let Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Response(response)))) = parse(&opened.body) else {
            panic!("an answer")
        };
        let refused = response.answer.expect_err("it is not kept");
        assert_eq!((refused.reason(), refused.is_lasting()), ("UNAVAILABLE", false));
        assert!(!refused.message.contains("10.0.0.1"), "{refused:?}");
    }
}

#[tokio::test]
async fn bus_messages_must_be_signed_and_are_accepted_once() {
    let network = MemoryNetwork::default();
    let [node, stranger] = [(); 2].map(|()| network.node(PublicKey::random()));
    let to = node.key();
    let there =
        Coordinator::start(CoordinatorOptions { bus: Some(Arc::new(node)), ..CoordinatorOptions::default() })
            .await;
    let mut answers = stranger.listen(GATEWAY_TOPIC).expect("free");
    let sealer = Sealer::of_root(SigningKey::generate());
    let actor = SigningKey::generate();
    let mail = |number| {
        let mut mail = direct_message(number, &actor, false);
        mail.origin.coordinator = sealer.root().to_string();
        mail
    };
    let sealed = |number, to: String| -> Envelope {
        let call = JsonRpcCall::new(method::MESSAGE_DELIVER, &mail(number)).expect("JSON");
        sealer.seal(&to, &request(7, &call), Timestamp::now(), Duration::from_secs(60)).expect("JSON")
    };
    let send = async |payload| {
        let destination = BusDestination::Key(to);
        let parcel = Datagram {
            to: destination,
            topic: GATEWAY_TOPIC,
            payload,
            form: PayloadForm::Framed,
            deadline: None,
            reply_to: None,
        };
        stranger.send(parcel).await.expect("taken");
    };
    // Plain, of somebody else's, and again: nobody answers. Then once more, by the name of its root.
    let plain = request(7, &JsonRpcCall::new(method::MESSAGE_DELIVER, &mail(1)).expect("JSON"));
    send(plain).await;
    let first = sealed(1, to.to_string()).to_json();
    send(first.clone()).await;
    send(first).await;
    send(sealed(2, there.root_text()).to_json()).await;
    for _ in 0..2 {
        let answer = tokio::time::timeout(PATIENCE, answers.next()).await.expect("in time").expect("there");
        let envelope = Envelope::from_json(&answer.payload).expect("signed");
        let own = sealer.root().to_string();
        let opened = envelope::open_envelope(&envelope, &[own], Timestamp::now()).expect("for us");
        assert_eq!(opened.root, there.root.verifying_key());
    }
    let (taken, duplicates) = there.inbox.taken();
    assert_eq!((taken.len(), duplicates), (2, 0));
    // Somebody who answers what nobody asked changes nothing.
    let answer =
        sealer.seal(&there.root_text(), br#"{"jsonrpc":"2.0","id":7,"result":{}}"#, Timestamp::now(), HOUR);
    send(answer.expect("JSON").to_json()).await;
    send(sealed(3, there.root_text()).to_json()).await;
    tokio::time::timeout(PATIENCE, answers.next()).await.expect("in time").expect("there");
    assert_eq!(there.inbox.taken().0.len(), 3);
}

/// Returns a coordinator's answer to a letter signed with `sealer`: the result, or the name of the refusal.
async fn delivered(
    there: &Coordinator,
    sealer: &Sealer,
    direct_message: &DirectMessage,
) -> Result<(), (String, bool)> {
    let mut direct_message = direct_message.clone();
    direct_message.origin.coordinator = sealer.root().to_string();
    let mut anybody = GatewayServiceClient::new(there.anybody());
    let answer =
        anybody.deliver(say(sealer, &there.root_text(), &direct_message)).await.expect("heard").into_inner();
    let envelope = envelope_convert::from_wire(answer.envelope.expect("signed")).expect("an envelope");
    let own = sealer.root().to_string();
    let opened = envelope::open_envelope(&envelope, &[own], Timestamp::now()).expect("for us");
    let Ok(JsonRpcPayload::Single(Ok(JsonRpcMessage::Response(response)))) = parse(&opened.body) else {
        panic!("an answer")
    };
    response.answer.map(drop).map_err(|refused| (refused.reason().to_owned(), refused.is_lasting()))
}

#[tokio::test]
async fn strangers_are_refused_unless_they_are_listed_or_allowed() {
    let (listed, stranger) =
        (Sealer::of_root(SigningKey::generate()), Sealer::of_root(SigningKey::generate()));
    let actor = SigningKey::generate();
    let (signed, unsigned) = (direct_message(1, &actor, true), direct_message(2, &actor, false));
    let refused = |reason: &str| Err((reason.to_owned(), true));
    for (strangers, of_signed, of_unsigned) in [
        (StrangerMailPolicy::Refused, refused("STRANGER"), refused("STRANGER")),
        (StrangerMailPolicy::Signed, Ok(()), refused("UNVERIFIED")),
        (StrangerMailPolicy::Any, Ok(()), Ok(())),
    ] {
        let mail = Some(MailPolicy { listed: vec![listed.root()], strangers });
        let there = Coordinator::start(CoordinatorOptions { mail, ..CoordinatorOptions::default() }).await;
        assert_eq!(delivered(&there, &stranger, &signed).await, of_signed, "{strangers:?}");
        assert_eq!(delivered(&there, &stranger, &unsigned).await, of_unsigned, "{strangers:?}");
        assert_eq!(delivered(&there, &listed, &unsigned).await, Ok(()), "{strangers:?}");
        assert!(there.inbox.foreign().iter().all(|foreign| *foreign), "storage is not told");
        // What is sent here needs nobody's permission.
        let mut router = there.router().await;
        router.says(deliver(1, &unsigned, &[])).await;
        assert_eq!(router.outcome(1).await, "");
        assert_eq!(there.inbox.foreign().last(), Some(&false));
    }
}

#[tokio::test]
async fn no_recipient_is_flooded_with_messages() {
    let there = Coordinator::start(CoordinatorOptions::default()).await;
    let stranger = Sealer::of_root(SigningKey::generate());
    let actor = SigningKey::generate();
    for number in 1..=STRANGER_MESSAGES_PER_MINUTE_MAX {
        assert_eq!(
            delivered(&there, &stranger, &direct_message(number, &actor, false)).await,
            Ok(()),
            "{number}"
        );
    }
    let mut next = direct_message(1000, &actor, false);
    next.origin.coordinator = stranger.root().to_string();
    let mut anybody = GatewayServiceClient::new(there.anybody());
    let refused = anybody.deliver(say(&stranger, &there.root_text(), &next)).await.expect_err("too many");
    let view = ErrorView::from(&refused);
    assert_eq!((view.code, view.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
    assert_eq!(view.metadata["limit"], "stranger_letters_per_minute_max");
    assert!(matches!(view.retry_after, Some(wait) if wait <= HOUR), "{:?}", view.retry_after);
    // Somebody else has not written too much.
    let other = Sealer::of_root(SigningKey::generate());
    assert_eq!(delivered(&there, &other, &next).await, Ok(()));
    let taken = usize::try_from(STRANGER_MESSAGES_PER_MINUTE_MAX).expect("small") + 1;
    assert_eq!(there.inbox.taken().0.len(), taken);
}

#[tokio::test]
async fn messages_bring_no_connection_to_this_machine() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    // What a name leads to is looked at when it is dialed.
    for host in ["127.0.0.1", "localhost"] {
        let address = format!("grpc://{host}:{port}");
        let runner = v1::Runner { id: 1, address: address.clone(), ..Default::default() };
        let addresses = Some(AddressRules::default());
        let here =
            Coordinator::start(CoordinatorOptions { runner, addresses, ..CoordinatorOptions::default() })
                .await;
        let mut router = here.router().await;
        let sent = direct_message(1, &SigningKey::generate(), false);
        router.says(deliver(1, &sent, std::slice::from_ref(&address))).await;
        let outcome = router.delivered(1).await;
        assert!(outcome.error.contains("ADDRESS_REFUSED"), "{outcome:?}");
        let mut gateway = GatewayServiceClient::new(here.channel(Identity::Admin));
        let ping = gateway.ping_peer(v1::PingPeerRequest { address }).await.expect_err("it is not dialed");
        assert!(ping.message().contains("ADDRESS_REFUSED"), "{ping}");
        let refused_peer = || {
            let mut gateway = gateway.clone();
            async move {
                let shown = gateway.get_gateway(v1::GetGatewayRequest {}).await.expect("an answer");
                let mut peers = shown.into_inner().peers.into_iter();
                peers.find(|peer| peer.last_error.contains("ADDRESS_REFUSED"))
            }
        };
        let peer = wait_until(refused_peer, PATIENCE, "the supervisor's place is not dialed").await;
        assert!(!peer.connected);
    }
    // All of it was tried by now, and nobody has come.
    let nobody =
        std::future::poll_fn(|cx| std::task::Poll::Ready(listener.poll_accept(cx).is_pending())).await;
    assert!(nobody, "somebody has connected");
}
