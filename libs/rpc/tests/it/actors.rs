//! Authentication of actors: certificates, tokens, and streams that end.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{pending, ready};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use identity::{ActorVerifyingKey, Identity, SigningKey, Token, TrustDomain};
use model::{ActorId, ContextId, Role, Timestamp};
use prometheus::Registry;
use rpc::{
    CallRate, Channel, Directory, ErrorView, KnownActor, Membership, answer_while_member, while_member,
};
use tonic::{Code, Request, Status};

use crate::known::Known;
use crate::stage::{
    ACTOR, ACTOR_ID, Authority, ROUTER, Running, SCHEDULER, call, open_stream_with, text, who_am_i,
};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Stage {
    pub(crate) authority: Authority,
    pub(crate) server: Running,
    key: SigningKey,
    known: Arc<Known>,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let authority = Authority::new();
        let key = SigningKey::generate();
        let known = Known::with(ACTOR_ID, &key);
        let server = Running::start_knowing(&authority, Some(known.clone())).await;
        Self { authority, server, key, known }
    }

    fn channel(&self, identity: Identity) -> Channel {
        self.server.channel(&self.authority.issue(identity))
    }

    pub(crate) fn anonymous(&self) -> Channel {
        self.server.channel(&self.authority.anonymous())
    }

    pub(crate) fn token(&self) -> String {
        token(&self.key, ACTOR_ID)
    }
}

fn token(key: &SigningKey, actor: ActorId) -> String {
    Token::sign(key, &TrustDomain::default(), actor, Timestamp::now(), Duration::from_secs(60))
}

pub(crate) fn with_token<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

pub(crate) async fn ask(channel: &Channel, method: &str, token: &str) -> Result<String, Status> {
    call(channel, method, with_token(token, text(""))).await
}

fn refused(answer: Result<String, Status>) -> (Code, String) {
    let status = answer.expect_err("it was let in");
    (status.code(), ErrorView::from(&status).reason)
}

fn unauthenticated(reason: &str) -> (Code, String) {
    (Code::Unauthenticated, reason.to_owned())
}

#[tokio::test]
async fn a_certificate_counts_while_its_actor_exists_and_did_not_give_it_up() {
    let stage = Stage::new().await;
    let channel = stage.channel(ACTOR);
    assert_eq!(who_am_i(&channel).await.unwrap(), "actor/7");
    stage.known.edit(ACTOR_ID, |known| known.certificates_not_before = Some(Timestamp::now() + PATIENCE));
    assert_eq!(refused(who_am_i(&channel).await), unauthenticated("IDENTITY_REVOKED"));
    // A token is another matter.
    assert_eq!(ask(&stage.anonymous(), "WhoAmI", &stage.token()).await.unwrap(), "actor/7");
    stage.known.edit(ACTOR_ID, |known| known.certificates_not_before = Some(Timestamp::default()));
    assert_eq!(who_am_i(&channel).await.unwrap(), "actor/7");
    stage.known.forget(ACTOR_ID);
    assert_eq!(refused(who_am_i(&channel).await), unauthenticated("IDENTITY_REVOKED"));
}

#[tokio::test]
async fn services_are_not_looked_up() {
    let stage = Stage::new().await;
    stage.known.set_away(true);
    assert_eq!(who_am_i(&stage.channel(SCHEDULER)).await.unwrap(), "service/scheduler");
    let status = who_am_i(&stage.channel(ACTOR)).await.unwrap_err();
    assert_eq!(
        (status.code(), ErrorView::from(&status).reason.as_str()),
        (Code::Unavailable, "PEER_UNAVAILABLE")
    );
    assert_eq!(stage.known.lookups(), 0);
}

#[tokio::test]
async fn a_server_that_cannot_look_actors_up_believes_none() {
    let authority = Authority::new();
    let server = Running::start_knowing(&authority, None).await;
    let channel = server.channel(&authority.issue(ACTOR));
    assert_eq!(refused(who_am_i(&channel).await), unauthenticated("IDENTITY_UNUSABLE"));
    let denied = call(&channel, "Never", Request::new(text(""))).await;
    assert_eq!(refused(denied).0, Code::PermissionDenied);
    let token = token(&SigningKey::generate(), ACTOR_ID);
    let anonymous = server.channel(&authority.anonymous());
    assert_eq!(refused(ask(&anonymous, "WhoAmI", &token).await), unauthenticated("IDENTITY_UNUSABLE"));
}

#[tokio::test]
async fn a_token_is_who_calls() {
    let stage = Stage::new().await;
    let token = stage.token();
    // Without a certificate, through a service's, beside the actor's own.
    for channel in [stage.anonymous(), stage.channel(ROUTER), stage.channel(ACTOR)] {
        assert_eq!(ask(&channel, "WhoAmI", &token).await.unwrap(), "actor/7");
    }
    for other in [Identity::Admin, Identity::Actor(ActorId(8))] {
        let channel = stage.channel(other);
        assert_eq!(refused(ask(&channel, "WhoAmI", &token).await), unauthenticated("IDENTITY_UNUSABLE"));
    }
    // A method that an actor may not call is closed to its token as well, whoever's certificate comes with it.
    let denied = ask(&stage.channel(SCHEDULER), "Never", &token).await;
    assert_eq!(refused(denied), (Code::PermissionDenied, "METHOD_NOT_ALLOWED".to_owned()));
}

#[tokio::test]
async fn who_cannot_sign_learns_nothing() {
    let stage = Stage::new().await;
    let stranger = SigningKey::generate();
    let mut messages = Vec::new();
    for actor in [ACTOR_ID, ActorId(8)] {
        let status = ask(&stage.anonymous(), "WhoAmI", &token(&stranger, actor)).await.unwrap_err();
        assert_eq!(
            (status.code(), ErrorView::from(&status).reason.as_str()),
            (Code::Unauthenticated, "IDENTITY_UNUSABLE")
        );
        messages.push(status.message().replace(&format!("actor/{actor}"), "actor/N"));
    }
    assert_eq!(messages[0], messages[1]);
    // Who once could, learns that it is over.
    stage.known.edit(ACTOR_ID, |known| known.keys[0].revoked_at = Some(Timestamp::now()));
    let over = ask(&stage.anonymous(), "WhoAmI", &stage.token()).await;
    assert_eq!(refused(over), unauthenticated("IDENTITY_REVOKED"));
}

#[tokio::test]
async fn other_authorizations_are_refused_by_name() {
    let stage = Stage::new().await;
    let expired = Token::sign(
        &stage.key,
        &TrustDomain::default(),
        ACTOR_ID,
        Timestamp::from_millis(Timestamp::now().as_millis() - 400_000),
        Duration::from_secs(300),
    );
    let elsewhere = "elsewhere".parse().unwrap();
    let elsewhere = Token::sign(&stage.key, &elsewhere, ACTOR_ID, Timestamp::now(), Duration::from_secs(60));
    for (authorization, why) in [
        ("Basic YTpi".to_owned(), "Bearer"),
        (format!("Bearer {expired}"), "expired"),
        (format!("Bearer {elsewhere}"), "spiffe://mycora"),
        ("Bearer x".to_owned(), "JWS"),
    ] {
        let mut request = Request::new(text(""));
        request.metadata_mut().insert("authorization", authorization.parse().unwrap());
        let status = call(&stage.anonymous(), "WhoAmI", request).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().contains(why), "{status}");
    }
    let mut twice = with_token(&stage.token(), text(""));
    twice.metadata_mut().append("authorization", "Bearer x".parse().unwrap());
    let answer = call(&stage.anonymous(), "WhoAmI", twice).await;
    assert_eq!(refused(answer), unauthenticated("IDENTITY_UNUSABLE"));
}

#[tokio::test]
async fn administrative_methods_take_a_token_once() {
    let stage = Stage::new().await;
    let (channel, token) = (stage.anonymous(), stage.token());
    assert_eq!(ask(&channel, "Administer", &token).await.unwrap(), "actor/7");
    let status = ask(&channel, "Administer", &token).await.unwrap_err();
    assert!(status.message().contains("used before"), "{status}");
    assert_eq!(ErrorView::from(&status).reason, "IDENTITY_UNUSABLE");
    // Elsewhere it still counts, and a certificate counts everywhere.
    assert_eq!(ask(&channel, "WhoAmI", &token).await.unwrap(), "actor/7");
    for _ in 0..2 {
        assert_eq!(
            call(&stage.channel(ACTOR), "Administer", Request::new(text(""))).await.unwrap(),
            "actor/7"
        );
    }
}

/// Opens a stream, sees that it goes on over changes of others, revokes, and gives how it ended.
async fn ended_by(
    stage: &Stage,
    channel: &Channel,
    token: Option<&str>,
    revoke: impl FnOnce(&Known),
) -> Status {
    let (sender, mut answers) = open_stream_with(channel, |request| {
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
    })
    .await
    .unwrap();
    for word in ["one", "two"] {
        sender.send(text(word)).await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().service, word);
        stage.known.touch();
    }
    let mut open = stage.server.echo.open.subscribe();
    assert_eq!(*open.borrow(), 1);
    revoke(&stage.known);
    let status = tokio::time::timeout(PATIENCE, answers.message()).await.expect("it goes on").unwrap_err();
    tokio::time::timeout(PATIENCE, open.wait_for(|n| *n == 0)).await.expect("it is still fed").unwrap();
    status
}

#[tokio::test]
async fn streams_end_when_a_certificate_is_revoked() {
    let stage = Stage::new().await;
    let channel = stage.channel(ACTOR);
    let status = ended_by(&stage, &channel, None, |known| {
        known.edit(ACTOR_ID, |known| known.certificates_not_before = Some(Timestamp::now() + PATIENCE));
    })
    .await;
    assert_eq!(
        (status.code(), ErrorView::from(&status).reason.as_str()),
        (Code::Unauthenticated, "IDENTITY_REVOKED")
    );
}

#[tokio::test]
async fn streams_end_when_the_key_of_their_token_is_revoked() {
    let stage = Stage::new().await;
    let (channel, token) = (stage.anonymous(), stage.token());
    // In a moment: the end that is set counts, without another notification.
    let status = ended_by(&stage, &channel, Some(&token), |known| {
        let soon = Timestamp::now() + Duration::from_millis(50);
        known.edit(ACTOR_ID, |known| known.keys[0].revoked_at = Some(soon));
    })
    .await;
    assert_eq!(
        (status.code(), ErrorView::from(&status).reason.as_str()),
        (Code::Unauthenticated, "IDENTITY_REVOKED")
    );
}

#[tokio::test]
async fn streams_end_with_their_actor() {
    let stage = Stage::new().await;
    let status = ended_by(&stage, &stage.channel(ACTOR), None, |known| known.forget(ACTOR_ID)).await;
    assert_eq!(ErrorView::from(&status).reason, "IDENTITY_REVOKED");
}

/// A call with one answer that its caller has to wait for is as long as a stream may be.
#[tokio::test]
async fn calls_that_wait_end_with_what_allowed_them() {
    let stage = Stage::new().await;
    let (by_certificate, by_token, token) = (stage.channel(ACTOR), stage.anonymous(), stage.token());
    let mut waiting = [
        Box::pin(call(&by_certificate, "Wait", Request::new(text("")))),
        Box::pin(call(&by_token, "Wait", with_token(&token, text("")))),
    ];
    let registry = Registry::new();
    stage.server.mount.metrics().register(&registry).unwrap();
    let arrived = async {
        while in_flight(&registry, "waiting") < 2 {
            let [one, other] = &mut waiting;
            assert!(futures_util::poll!(one).is_pending() && futures_util::poll!(other).is_pending());
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, arrived).await.expect("they arrive");
    let [by_certificate, by_token] = waiting;
    stage.known.edit(ACTOR_ID, |known| known.keys[0].revoked_at = Some(Timestamp::now()));
    let ended = tokio::time::timeout(PATIENCE, by_token).await.expect("it goes on");
    assert_eq!(refused(ended), unauthenticated("IDENTITY_REVOKED"));
    stage.known.forget(ACTOR_ID);
    let ended = tokio::time::timeout(PATIENCE, by_certificate).await.expect("it goes on");
    assert_eq!(refused(ended), unauthenticated("IDENTITY_REVOKED"));
}

/// A call that waits until the share of its actor allows for it has done nothing yet, and does nothing any more.
#[tokio::test]
async fn a_call_that_waits_for_its_turn_ends_with_what_allowed_it() {
    let stage = Stage::new().await;
    let other = SigningKey::generate();
    let key =
        ActorVerifyingKey { key: other.verifying_key(), not_before: Timestamp::default(), revoked_at: None };
    stage.known.put(ActorId(8), KnownActor { keys: vec![key], certificates_not_before: None });
    who_am_i(&stage.channel(Identity::Actor(ActorId(8)))).await.unwrap();
    let channel = stage.channel(ACTOR);
    call(&channel, "Use", Request::new(text(""))).await.unwrap();

    let before = stage.known.lookups();
    let mut waiting = Box::pin(who_am_i(&channel));
    let arrived = async {
        while stage.known.lookups() == before {
            assert!(futures_util::poll!(&mut waiting).is_pending());
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, arrived).await.expect("it arrives");
    stage.known.forget(ACTOR_ID);
    let ended = tokio::time::timeout(PATIENCE, waiting).await.expect("it goes on");
    assert_eq!(refused(ended), unauthenticated("IDENTITY_REVOKED"));
}

fn in_flight(registry: &Registry, kind: &str) -> i64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == "mycora_calls_in_flight").unwrap();
    let of_kind = family.get_metric().iter().find(|metric| metric.get_label()[0].value() == kind);
    of_kind.map_or(0, |metric| metric.get_gauge().get_value() as i64)
}

const CONTEXT: ContextId = ContextId(5);

fn member(role: Option<Role>, is_deleting: bool) -> Membership {
    Membership { role, is_deleting }
}

/// How a stream of a reader ends after this change.
async fn ended_for_member(change: Membership) -> (Code, String) {
    let known = Arc::new(Known::default());
    known.set_member(CONTEXT, ACTOR_ID, member(Some(Role::Executor), false));
    let endless = stream::iter([Ok(1), Ok(2)]).chain(stream::pending());
    let directory: Arc<dyn Directory> = known.clone();
    let mut watched = while_member(endless, directory, CONTEXT, ACTOR_ID, Role::Executor);
    assert_eq!(watched.next().await.unwrap().unwrap(), 1);
    known.touch();
    assert_eq!(watched.next().await.unwrap().unwrap(), 2);
    known.set_member(CONTEXT, ACTOR_ID, change);
    let status =
        tokio::time::timeout(PATIENCE, watched.next()).await.expect("it goes on").unwrap().unwrap_err();
    assert!(watched.next().await.is_none());
    (status.code(), ErrorView::from(&status).reason)
}

#[tokio::test]
async fn streams_of_members_end_with_what_allowed_them() {
    let ended = |code, reason: &str| (code, reason.to_owned());
    let cases = [
        (member(Some(Role::Reader), false), ended(Code::PermissionDenied, "ROLE_INSUFFICIENT")),
        (member(None, false), ended(Code::NotFound, "NOT_FOUND")),
        (member(Some(Role::Admin), true), ended(Code::FailedPrecondition, "CONTEXT_DELETING")),
        (member(None, true), ended(Code::NotFound, "NOT_FOUND")),
    ];
    for (change, expected) in cases {
        assert_eq!(ended_for_member(change).await, expected, "{change:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_in_doubt_but_not_for_long() {
    let known = Arc::new(Known::default());
    known.set_member(CONTEXT, ACTOR_ID, member(Some(Role::Reader), false));
    let directory: Arc<dyn Directory> = known.clone();
    let endless = stream::pending::<Result<(), Status>>();
    let mut watched = while_member(endless, directory, CONTEXT, ACTOR_ID, Role::Reader);
    known.set_away(true);
    let began = tokio::time::Instant::now();
    assert!(tokio::time::timeout(Duration::from_secs(20), watched.next()).await.is_err());
    known.set_away(false);
    assert!(tokio::time::timeout(Duration::from_secs(100), watched.next()).await.is_err());
    known.set_away(true);
    let status = watched.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(began.elapsed() >= Duration::from_secs(150), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_gives_no_answer_leaves_a_stream_in_doubt_as_well() {
    let known = Arc::new(Known::default());
    known.set_member(CONTEXT, ACTOR_ID, member(Some(Role::Reader), false));
    let directory: Arc<dyn Directory> = known.clone();
    let endless = stream::pending::<Result<(), Status>>();
    let mut watched = while_member(endless, directory, CONTEXT, ACTOR_ID, Role::Reader);
    known.fall_silent();
    let ended = tokio::time::timeout(Duration::from_secs(40), watched.next()).await;
    let status = ended.expect("it goes on").unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_role_is_looked_up_again_while_the_change_feed_is_lost() {
    let known = Arc::new(Known::default());
    known.set_member(CONTEXT, ACTOR_ID, member(Some(Role::Reader), false));
    let directory: Arc<dyn Directory> = known.clone();
    let endless = stream::pending::<Result<(), Status>>();
    let mut watched = while_member(endless, directory, CONTEXT, ACTOR_ID, Role::Reader);
    known.lose_feed();
    assert!(tokio::time::timeout(Duration::from_secs(100), watched.next()).await.is_err());
    known.set_member_in_silence(CONTEXT, ACTOR_ID, member(None, false));
    let ended = tokio::time::timeout(Duration::from_secs(3), watched.next()).await;
    assert_eq!(ended.expect("it goes on").unwrap().unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn an_answer_comes_while_its_caller_is_a_member() {
    let known = Arc::new(Known::default());
    let directory: Arc<dyn Directory> = known.clone();
    known.set_member(CONTEXT, ACTOR_ID, member(Some(Role::Reader), false));
    let wait = |answer| answer_while_member::<()>(answer, directory.clone(), CONTEXT, ACTOR_ID, Role::Reader);
    let mut waiting = Box::pin(wait(pending().boxed()));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    known.touch();
    assert!(futures_util::poll!(&mut waiting).is_pending());
    known.set_member(CONTEXT, ACTOR_ID, member(None, false));
    assert_eq!(refused(waiting.await.map(|()| String::new())).0, Code::NotFound);
    // What is there already is given.
    wait(ready(Ok(())).boxed()).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_ends_by_itself_ends() {
    let known = Arc::new(Known::default());
    known.set_member(CONTEXT, ACTOR_ID, member(Some(Role::Reader), false));
    let finite = stream::iter([Ok::<_, Status>(1)]);
    let watched = while_member(finite, known, CONTEXT, ACTOR_ID, Role::Reader);
    assert_eq!(watched.map(Result::unwrap).collect::<Vec<_>>().await, [1]);
}

/// A server that lets an actor make two calls at once, and one a second.
async fn stage_with_a_slow_rate() -> Stage {
    let stage = Stage::new().await;
    stage.server.mount.bound_actors(CallRate { per_sec: 1, burst: 2 });
    stage
}

#[tokio::test]
async fn an_actor_over_its_rate_gets_a_retry_time_and_other_callers_are_served() {
    let stage = stage_with_a_slow_rate().await;
    // Over connections of its own or with tokens it is the same actor.
    let (certificate, token) = (stage.channel(ACTOR), stage.token());
    who_am_i(&certificate).await.unwrap();
    ask(&stage.anonymous(), "WhoAmI", &token).await.unwrap();
    let mut refusal = None;
    for _ in 0..100 {
        if let Err(status) = who_am_i(&stage.channel(ACTOR)).await {
            refusal = Some(ErrorView::from(&status));
            break;
        }
    }
    let refusal = refusal.expect("a hundred calls are not made in a second for each of them");
    assert_eq!((refusal.code, refusal.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
    assert_eq!(refusal.metadata["limit"], "actor_calls_per_sec");
    assert!(refusal.retry_after.is_some_and(|after| after <= Duration::from_secs(1)), "{refusal:?}");
    for _ in 0..10 {
        who_am_i(&stage.channel(SCHEDULER)).await.expect("services are not bounded");
    }
}

#[tokio::test]
async fn a_forged_token_uses_nothing_of_the_share_of_its_actor() {
    let stage = stage_with_a_slow_rate().await;
    let forged = token(&SigningKey::generate(), ACTOR_ID);
    for _ in 0..20 {
        let refused = refused(ask(&stage.anonymous(), "WhoAmI", &forged).await);
        assert_eq!(refused, unauthenticated("IDENTITY_UNUSABLE"));
    }
    who_am_i(&stage.channel(ACTOR)).await.unwrap();
    who_am_i(&stage.channel(ACTOR)).await.unwrap();
}
