//! By which keys letters are from whom they are, when they are sent and when they are sent again.

use std::time::Duration;

use identity::{Identity, SigningKey};
use kv::Cmd;
use model::{MessageFormat, MessageType, Timestamp};
use proto::v1;
use tonic::Code;

use crate::letters::{chat, connected, letter_in, publish, resend, send, until};
use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, Router, Stage, failure, key_of};

/// An actor of these tests.
const SIGNER: u32 = 5;

/// An executor of its own, with a key that this test has.
async fn signer(stage: &Stage<impl Redis>) -> SigningKey {
    let key = SigningKey::generate();
    let register = v1::RegisterActorRequest {
        id: SIGNER,
        pubkey: key.verifying_key().to_string(),
        ..Default::default()
    };
    stage.actors(Identity::Admin).register_actor(register).await.unwrap();
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("executors").arg("[2,5]")).await;
    key
}

/// A signature of a chat for the admin.
pub(crate) fn sign(text: &str, key: &SigningKey, expires: Timestamp) -> String {
    let to = key_of(ADMIN);
    let terms = envelope::actor::DirectMessageTerms {
        to: &to,
        target_context: None,
        message_type: MessageType::Chat,
        format: MessageFormat::Text,
        topic: "",
        text,
    };
    envelope::actor::sign_direct_message(&terms, key, expires)
}

fn signed(signature: String) -> v1::SendMessageRequest {
    v1::SendMessageRequest { signature, ..chat("1", "mine") }
}

async fn a_signature_is_the_senders_and_fits(stage: Stage<impl Redis>) {
    let key = signer(&stage).await;
    let expires = Timestamp::now() + Duration::from_secs(600);
    let sent = send(&stage, SIGNER, signed(sign("mine", &key, expires))).await;
    assert!(sent.verified);
    let mut router = stage.router("r").await;
    let (letter, _) = letter_in(&router.take(1).await[0]);
    assert!(letter.signature.is_some());
    // An hour was asked for; what is signed holds for ten minutes.
    assert_eq!(letter.expires_at, expires);

    let others = sign("mine", &SigningKey::generate(), expires);
    let other = sign("other", &key, expires);
    for (what, signature) in [("text", other), ("key", others), ("form", "{}".to_owned())] {
        let status = stage.message_box().publish(publish(SIGNER, signed(signature))).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{what}");
        assert!(status.message().contains("signature"), "{}", status.message());
    }
}

/// Gives the actor a new key, which is returned; the former one counts for `overlap_secs` beside it.
async fn rotate(stage: &Stage<impl Redis>, overlap_secs: u32) -> String {
    let pubkey = SigningKey::generate().verifying_key().to_string();
    let rotate =
        v1::RotateActorKeyRequest { id: SIGNER, pubkey: pubkey.clone(), overlap_secs, ..Default::default() };
    stage.actors(Identity::Admin).rotate_actor_key(rotate).await.unwrap();
    pubkey
}

/// Settles the message that the router holds as undeliverable.
async fn dies(stage: &Stage<impl Redis>, router: &mut Router, key: &str) {
    let taken = router.take(1).await;
    assert_eq!(taken[0].message_key, key);
    router.settle(&taken, "UNDELIVERABLE: nobody there").await;
    until(stage, key, v1::MessageStatus::Error).await;
}

/// A signed one and one without a signature that will not arrive, and the key that both are from.
async fn dead_letters(stage: &Stage<impl Redis>, router: &mut Router) -> (String, String, String) {
    let key = signer(stage).await;
    let expires = Timestamp::now() + Duration::from_secs(600);
    let with = send(stage, SIGNER, signed(sign("mine", &key, expires))).await.key;
    dies(stage, router, &with).await;
    let without = send(stage, SIGNER, chat("1", "mine")).await.key;
    dies(stage, router, &without).await;
    (with, without, key.verifying_key().to_string())
}

async fn what_is_sent_again_is_from_a_key_that_counts(stage: Stage<impl Redis>) {
    let mut router = connected(&stage, "r").await;
    let (with, without, first) = dead_letters(&stage, &mut router).await;
    // Both keys count for a while.
    let second = rotate(&stage, 3600).await;
    for (key, from) in [(&with, &first), (&without, &second)] {
        resend(&stage, SIGNER, "", key).await.unwrap();
        let taken = router.take(1).await;
        let (letter, _) = letter_in(&taken[0]);
        assert_eq!((&taken[0].message_key, &letter.from), (key, from));
        router.settle(&taken, "UNDELIVERABLE: nobody there").await;
        until(&stage, key, v1::MessageStatus::Error).await;
    }

    // Then only the last one.
    resend(&stage, SIGNER, "before", &with).await.unwrap();
    dies(&stage, &mut router, &with).await;
    let third = rotate(&stage, 0).await;
    for actor in [SIGNER, ADMIN] {
        let refused = failure(resend(&stage, actor, "", &with).await);
        assert_eq!(refused, (Code::FailedPrecondition, "SENDER_KEY_OVER".to_owned()), "actor {actor}");
    }
    // What was done before is not asked about again.
    assert_eq!(resend(&stage, SIGNER, "before", &with).await.unwrap().status(), v1::MessageStatus::Error);
    resend(&stage, SIGNER, "", &without).await.unwrap();
    let (letter, _) = letter_in(&router.take(1).await[0]);
    assert_eq!(letter.from, third);
}

async fn nothing_is_sent_again_for_a_removed_actor(stage: Stage<impl Redis>) {
    let mut router = connected(&stage, "r").await;
    let (with, without, _) = dead_letters(&stage, &mut router).await;
    let delete = v1::DeleteActorRequest { id: SIGNER, ..Default::default() };
    stage.actors(Identity::Admin).delete_actor(delete).await.unwrap();
    for key in [with, without] {
        let refused = failure(resend(&stage, ADMIN, "", &key).await);
        assert_eq!(refused, (Code::FailedPrecondition, "SENDER_KEY_OVER".to_owned()));
    }
}

scenarios!(
    a_signature_is_the_senders_and_fits,
    what_is_sent_again_is_from_a_key_that_counts,
    nothing_is_sent_again_for_a_removed_actor
);
