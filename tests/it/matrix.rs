//! Every method, called by everybody: the answers are those of `specs/permissions.md`.

use std::collections::BTreeMap;

use identity::{Identity, ServiceName};
use model::ActorId;
use prost_reflect::MethodDescriptor;
use rpc::{ErrorView, TlsFiles, code_name};
use serde_json::{Value, json};
use tonic::Code;

use crate::specs::rows;

mod objects;
mod stage;
mod tokens;
mod wire;

use stage::{ADMIN, ADMIN_ELSEWHERE, EXECUTOR, READER, STRANGER, Stage};
use wire::short;

/// One who calls: with a certificate, a token, both or neither.
struct Caller {
    name: &'static str,
    tls: TlsFiles,
    token: Option<String>,
}

impl Caller {
    fn new(name: &'static str, tls: TlsFiles) -> Self {
        Self { name, tls, token: None }
    }
}

/// What was answered, as the page writes it.
async fn answer(stage: &Stage, caller: &Caller, method: &MethodDescriptor, body: &Value) -> (String, String) {
    let channel = stage.channel(method.parent_service().name(), &caller.tls);
    match wire::call(channel, caller.token.as_deref(), method, body).await {
        Ok(_) => ("OK".to_owned(), String::new()),
        Err(status) => {
            let view = ErrorView::from(&status);
            (code_name(view.code).to_owned(), view.reason)
        }
    }
}

/// Methods that need nobody, or anybody.
fn is_open(method: &str) -> bool {
    ["GatewayService/Deliver"].contains(&method)
}

/// The first cells of the table under a heading, by the method in the first one.
fn table(heading: &str) -> BTreeMap<String, Vec<String>> {
    let rows = rows("permissions.md", heading).into_iter();
    rows.map(|row| (row[0].clone(), row[1..].to_vec())).collect()
}

/// Callers whose answer depends on the method, by the column that they have.
fn by_role(stage: &Stage) -> [(usize, Caller); 6] {
    let actor = |name, id| Caller::new(name, stage.actor(id));
    [
        (0, actor("without a role", STRANGER)),
        (0, actor("admin of another context", ADMIN_ELSEWHERE)),
        (1, actor("reader", READER)),
        (2, actor("executor", EXECUTOR)),
        (3, actor("admin", ADMIN)),
        (4, Caller::new("bootstrap", stage.certificate(Identity::Admin))),
    ]
}

/// Callers whom no method knows, with what they are told.
async fn unknown(stage: &Stage) -> Vec<(Caller, Code, &'static str)> {
    let executor = Identity::Actor(ActorId(EXECUTOR));
    let mut all = vec![
        (Caller::new("without a certificate", stage.anonymous()), Code::Unauthenticated, "IDENTITY_REQUIRED"),
        (Caller::new("wrong authority", stage.foreign(executor)), Code::Unavailable, "PEER_UNAVAILABLE"),
        (Caller::new("expired certificate", stage.expired(executor)), Code::Unavailable, "PEER_UNAVAILABLE"),
    ];
    for (name, token, reason) in tokens::refused(stage).await {
        let caller = Caller { name, tls: stage.anonymous(), token: Some(token) };
        all.push((caller, Code::Unauthenticated, reason));
    }
    let revoked = Caller::new("revoked certificate", tokens::revoked_certificate(stage).await);
    all.push((revoked, Code::Unauthenticated, "IDENTITY_REVOKED"));
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_answers_everybody_as_written() {
    let stage = Stage::new().await;
    let written = table("Public methods");
    let (known, unknown) = (by_role(&stage), unknown(&stage).await);
    let mut wrong = Vec::new();
    let mut methods = stage.methods.of("mycora.v1");
    // The runners of a machine that is drained end.
    methods.sort_by_key(|method| short(method) == "SupervisorService/Drain");
    for method in &methods {
        let name = short(method);
        let Some(row) = written.get(&name) else {
            wrong.push(format!("{name} has no row in specs/permissions.md"));
            continue;
        };
        for (column, caller) in &known {
            let body = objects::filled(&stage, objects::request(&name)).await;
            let (code, reason) = answer(&stage, caller, method, &body).await;
            if code != row[*column] {
                wrong.push(format!("{name}, {}: {code} {reason}, not {}", caller.name, row[*column]));
            }
        }
        let body = plain(objects::request(&name));
        for (caller, code, reason) in &unknown {
            // Whoever cannot even connect is told so by every method.
            if is_open(&name) && *code != Code::Unavailable {
                continue;
            }
            let expected = expected_of_unknown(&name, caller, (*code, reason));
            let got = answer(&stage, caller, method, &body).await;
            if got != expected {
                wrong.push(format!("{name}, {}: {got:?}, not {expected:?}", caller.name));
            }
        }
        wrong.extend(of_services(&stage, method, &body).await);
    }
    let methods: Vec<_> = methods.iter().map(short).collect();
    wrong.extend(
        written.keys().filter(|name| !methods.contains(name)).map(|name| format!("there is no {name}")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Gateways and supervisors have no methods for actors, and ask nobody who one is: an actor is refused whatever it shows.
fn expected_of_unknown(method: &str, caller: &Caller, (code, reason): (Code, &str)) -> (String, String) {
    let of_operators = ["GatewayService/", "SupervisorService/"].iter().any(|name| method.starts_with(name));
    let is_actor = ["revoked key", "token of another key", "revoked certificate"].contains(&caller.name);
    let (code, reason) = match of_operators && is_actor {
        true => (Code::PermissionDenied, "METHOD_NOT_ALLOWED"),
        false => (code, reason),
    };
    (code_name(code).to_owned(), reason.to_owned())
}

/// A request whose places are not filled: it is refused before anybody looks for them.
fn plain(value: Value) -> Value {
    match value {
        Value::String(text) if text.starts_with('$') => json!("1"),
        Value::Array(all) => all.into_iter().map(plain).collect(),
        Value::Object(all) => all.into_iter().map(|(name, one)| (name, plain(one))).collect(),
        other => other,
    }
}

/// No public method is for a service that has nothing to do with it.
async fn of_services(stage: &Stage, method: &MethodDescriptor, body: &Value) -> Option<String> {
    let caller = Caller::new("saga", stage.certificate(Identity::Service(ServiceName::Saga)));
    let name = short(method);
    let open = ["ActorService/WhoAmI", "SupervisorService/GetSupervisor", "SupervisorService/ListInstances"];
    let expected = if open.contains(&name.as_str()) { "OK" } else { "PERMISSION_DENIED" };
    let (code, reason) = answer(stage, &caller, method, body).await;
    (code != expected).then(|| format!("{name}, the service saga: {code} {reason}, not {expected}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn internal_methods_are_for_the_services_written() {
    let stage = Stage::new().await;
    let written = table("Internal methods");
    let services: Vec<(ServiceName, Caller)> = ServiceName::ALL
        .iter()
        .map(|name| (*name, Caller::new(name.as_str(), stage.certificate(Identity::Service(*name)))))
        .collect();
    let others = [
        (Caller::new("an admin", stage.actor(ADMIN)), "PERMISSION_DENIED"),
        (Caller::new("bootstrap", stage.certificate(Identity::Admin)), "PERMISSION_DENIED"),
        (Caller::new("nobody", stage.anonymous()), "UNAUTHENTICATED"),
    ];
    let mut wrong = Vec::new();
    for method in stage.methods.of("mycora.internal.v1") {
        let name = short(&method);
        let of_service = format!("{}/*", method.parent_service().name());
        let Some(row) = written.get(&name).or_else(|| written.get(&of_service)) else {
            wrong.push(format!("{name} has no row in specs/permissions.md"));
            continue;
        };
        let admitted: Vec<&str> = row[0].split(", ").collect();
        for (service, caller) in &services {
            let (code, reason) = answer(&stage, caller, &method, &json!({})).await;
            let is_denied = reason == "METHOD_NOT_ALLOWED";
            if is_denied == admitted.contains(&service.as_str()) {
                wrong.push(format!("{name}, {service}: {code} {reason}"));
            }
        }
        for (caller, expected) in &others {
            let (code, reason) = answer(&stage, caller, &method, &json!({})).await;
            if code != *expected {
                wrong.push(format!("{name}, {}: {code} {reason}, not {expected}", caller.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
