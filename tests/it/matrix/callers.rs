//! Callers of methods, and the answer that each of them has to get.

use identity::{Identity, ServiceName};
use model::ActorId;
use prost_reflect::MethodDescriptor;
use rpc::{ErrorView, TlsFiles, code_name};
use serde_json::Value;

use super::stage::{ADMIN, ADMIN_ELSEWHERE, EXECUTOR, READER, STRANGER, Stage};
use super::wire::short;
use super::{tokens, wire};
use crate::specs::codes_of_reasons;

/// Cell of the page for a call that succeeds.
pub(crate) const OK: &str = "OK";
pub(crate) const NOT_ALLOWED: &str = "METHOD_NOT_ALLOWED";

/// One who calls: with a certificate, a token, both or neither.
pub(crate) struct Caller {
    pub(crate) name: &'static str,
    tls: TlsFiles,
    token: Option<String>,
}

impl Caller {
    fn new(name: &'static str, tls: TlsFiles) -> Self {
        Self { name, tls, token: None }
    }

    pub(crate) fn with_token(name: &'static str, stage: &Stage, token: String) -> Self {
        Self { name, tls: stage.anonymous(), token: Some(token) }
    }

    pub(crate) fn service(stage: &Stage, name: ServiceName) -> Self {
        Self::new(name.as_str(), stage.certificate(Identity::Service(name)))
    }
}

/// Returns `OK`, or the reason of the refusal. The code is the one that `specs/errors.md` has for it.
pub(crate) async fn answer(
    stage: &Stage,
    caller: &Caller,
    method: &MethodDescriptor,
    body: &Value,
) -> String {
    let channel = stage.channel(method.parent_service().name(), &caller.tls);
    let Err(status) = wire::call(channel, caller.token.as_deref(), method, body).await else {
        return OK.to_owned();
    };
    let ErrorView { code, reason, message, .. } = ErrorView::from(&status);
    let expected = codes_of_reasons();
    let fits = expected.get(&reason).is_some_and(|codes| codes.contains(code_name(code)));
    if fits { reason } else { format!("{} with the reason `{reason}`: {message}", code_name(code)) }
}

/// Returns how the answer to a caller differs from the expected one, if it does.
pub(crate) async fn differs(
    stage: &Stage,
    caller: &Caller,
    method: &MethodDescriptor,
    body: &Value,
    written: &str,
) -> Option<String> {
    let got = answer(stage, caller, method, body).await;
    (got != written).then(|| format!("{}, {}: {got}, not {written}", short(method), caller.name))
}

/// Callers whose answer depends on the method, by the column that they have. Who changes nothing comes first.
pub(crate) fn by_role(stage: &Stage) -> [(usize, Caller); 6] {
    let actor = |name, id| Caller::new(name, stage.actor(id));
    [
        (0, actor("without a role", STRANGER)),
        (0, actor("admin of another context", ADMIN_ELSEWHERE)),
        (4, Caller::new("bootstrap", stage.certificate(Identity::Admin))),
        (1, actor("reader", READER)),
        (2, actor("executor", EXECUTOR)),
        (3, actor("admin", ADMIN)),
    ]
}

/// Callers unknown to every method, with the reason of their refusal.
pub(crate) async fn unknown(stage: &Stage) -> Vec<(Caller, &'static str)> {
    let executor = Identity::Actor(ActorId(EXECUTOR));
    let mut all = vec![
        (Caller::new("without a certificate", stage.anonymous()), "IDENTITY_REQUIRED"),
        (Caller::new("wrong authority", stage.foreign(executor).files), "PEER_UNAVAILABLE"),
        (Caller::new("expired certificate", stage.expired(executor).files), "PEER_UNAVAILABLE"),
    ];
    for (name, token, reason) in tokens::refused(stage).await {
        all.push((Caller::with_token(name, stage, token), reason));
    }
    let revoked = Caller::new("revoked certificate", tokens::revoked_certificate(stage).await);
    all.push((revoked, "IDENTITY_REVOKED"));
    all
}

/// Returns the answer that such a caller has to get from a method.
pub(crate) fn expected_answer(method: &str, caller: &Caller, reason: &'static str) -> &'static str {
    // A caller that cannot even connect is refused by every method.
    if reason == "PEER_UNAVAILABLE" {
        return reason;
    }
    if is_open(method) {
        return OK;
    }
    // Gateways and supervisors have no methods for actors and do not look actors up: an actor is refused whatever it presents.
    let of_operators = ["GatewayService/", "GatewayLinkService/", "SupervisorService/"]
        .iter()
        .any(|name| method.starts_with(name));
    let is_actor = ["revoked key", "token of another key", "revoked certificate"].contains(&caller.name);
    if of_operators && is_actor { NOT_ALLOWED } else { reason }
}

/// Methods that do not check their caller.
pub(crate) fn is_open(method: &str) -> bool {
    method == "GatewayService/Deliver"
}
