//! Tokens and certificates that count no more, or never did.

use std::time::Duration;

use identity::{Identity, SigningKey, Token, TrustDomain};
use model::{ActorId, Timestamp};
use rpc::TlsFiles;
use serde_json::json;

use super::stage::{EXECUTOR, Stage};

const MINUTE: Duration = Duration::from_secs(60);

/// A token that is in force.
pub(crate) fn of(key: &SigningKey, actor: u32) -> String {
    Token::sign(key, &TrustDomain::default(), ActorId(actor), Timestamp::now(), MINUTE)
}

/// Tokens that are refused, each with its name and the reason.
pub(crate) async fn refused(stage: &Stage) -> Vec<(&'static str, String, &'static str)> {
    let key = &stage.keys[&EXECUTOR];
    let ours = TrustDomain::default();
    let an_hour_ago = Timestamp::from_millis(Timestamp::now().as_millis() - 3_600_000);
    let expired = Token::sign(key, &ours, ActorId(EXECUTOR), an_hour_ago, MINUTE);
    let elsewhere: TrustDomain = "elsewhere".parse().expect("a trust domain");
    let other = Token::sign(key, &elsewhere, ActorId(EXECUTOR), Timestamp::now(), MINUTE);
    let strange = of(&SigningKey::generate(), EXECUTOR);
    vec![
        ("revoked key", revoked(stage).await, "IDENTITY_REVOKED"),
        ("expired token", expired, "IDENTITY_UNUSABLE"),
        ("token for another audience", other, "IDENTITY_UNUSABLE"),
        ("token of another key", strange, "IDENTITY_UNUSABLE"),
    ]
}

/// A token of a key that was replaced.
async fn revoked(stage: &Stage) -> String {
    let key = SigningKey::generate();
    let register = json!({"pubkey": key.verifying_key().to_string()});
    let actor = stage.ask("ActorService/RegisterActor", register).await["actor"]["id"].clone();
    let next = SigningKey::generate().verifying_key().to_string();
    stage.ask("ActorService/RotateActorKey", json!({"id": actor, "pubkey": next})).await;
    of(&key, actor.as_u64().and_then(|id| id.try_into().ok()).expect("an id"))
}

/// A certificate of an actor that was removed since.
pub(crate) async fn revoked_certificate(stage: &Stage) -> TlsFiles {
    let register = json!({"pubkey": SigningKey::generate().verifying_key().to_string()});
    let actor = stage.ask("ActorService/RegisterActor", register).await["actor"]["id"].clone();
    let id = actor.as_u64().and_then(|id| id.try_into().ok()).expect("an id");
    let certificate = stage.certificate(Identity::Actor(ActorId(id)));
    stage.ask("ActorService/DeleteActor", json!({"id": id})).await;
    certificate
}
