//! Every method, called by every kind of caller: the answers are those of `specs/permissions.md`.

use std::collections::BTreeMap;

use identity::{Pki, ServiceName};
use prost_reflect::MethodDescriptor;
use serde_json::{Value, json};
use testkit::pages::rows;

use crate::suite::Up;

mod callers;
mod handshake;
pub(crate) mod objects;
pub(crate) mod stage;
mod states;
pub(crate) mod tokens;
pub(crate) mod wire;

use callers::{Caller, NOT_ALLOWED, OK, by_role, differs, expected_answer, is_open, unknown};
use stage::{EXECUTOR, Stage};
use wire::{Methods, short};

/// The other cells of the table under a heading, by the method in the first one.
fn table(heading: &str) -> BTreeMap<String, Vec<String>> {
    let rows = rows("permissions.md", heading).into_iter();
    rows.map(|row| (row[0].clone(), row[1..].to_vec())).collect()
}

/// The public methods, those last that others cannot be called after.
fn public(stage: &Stage) -> Vec<MethodDescriptor> {
    let mut methods = stage.methods.of("mycora.v1");
    // Contexts are passed on to a coordinator that is not there; the runners of a machine that is drained end.
    let last = ["SupervisorService/SucceedCoordinator", "SupervisorService/Drain"];
    methods.sort_by_key(|method| last.iter().position(|name| *name == short(method)).map_or(0, |at| at + 1));
    methods
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_answers_everybody_as_written() {
    let stage = Stage::new().await;
    let (written, for_services) = (table("Public methods"), table("Services and public methods"));
    let (known, unknown) = (by_role(&stage), unknown(&stage).await);
    let mut wrong = Vec::new();
    let methods = public(&stage);
    for method in &methods {
        let name = short(method);
        let Some(row) = written.get(&name) else {
            wrong.push(format!("{name} has no row in specs/permissions.md"));
            continue;
        };
        // What the next caller is refused stays for the one after it.
        let mut object = None;
        for (column, caller) in &known {
            let body = match object.take() {
                Some(body) => body,
                None => objects::filled(&stage, objects::request(&name)).await,
            };
            wrong.extend(differs(&stage, caller, method, &body, &row[*column]).await);
            object = Some(body).filter(|_| row[*column] != OK);
        }
        let refused = known.iter().filter(|(column, _)| row[*column] != OK);
        wrong.extend(of_nothing(&stage, method, refused.map(|(_, caller)| caller)).await);
        let body = plain(objects::request(&name));
        for (caller, reason) in &unknown {
            wrong
                .extend(differs(&stage, caller, method, &body, expected_answer(&name, caller, reason)).await);
        }
        wrong.extend(of_services(&stage, method, for_services.get(&name)).await);
        if is_open(&name) {
            let everybody = known.iter().map(|(_, caller)| (caller, OK));
            let everybody = everybody.chain(
                unknown.iter().map(|(caller, reason)| (caller, expected_answer(&name, caller, reason))),
            );
            wrong.extend(of_envelopes(&stage, method, everybody).await);
        }
    }
    wrong.extend(surplus(written.keys(), &methods));
    wrong.extend(surplus(for_services.keys(), &methods));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Rows of the page that are about nothing.
fn surplus<'a>(written: impl Iterator<Item = &'a String>, methods: &[MethodDescriptor]) -> Vec<String> {
    let methods: Vec<_> = methods.iter().map(short).collect();
    written.filter(|name| !methods.contains(name)).map(|name| format!("there is no {name}")).collect()
}

/// A request whose places are not filled: it is refused before anybody looks for them.
fn plain(value: Value) -> Value {
    match value {
        // A number, and base64 as well.
        Value::String(text) if text.starts_with('$') => json!("1234"),
        Value::Array(all) => all.into_iter().map(plain).collect(),
        Value::Object(all) => all.into_iter().map(|(name, one)| (name, plain(one))).collect(),
        other => other,
    }
}

/// Finds callers that may not call a method and yet get an answer to an empty request.
async fn of_nothing(
    stage: &Stage,
    method: &MethodDescriptor,
    refused: impl Iterator<Item = &Caller>,
) -> Vec<String> {
    let name = short(method);
    let body = bare(objects::filled(stage, objects::request(&name)).await);
    let mut wrong = Vec::new();
    for caller in refused {
        if callers::answer(stage, caller, method, &body).await == OK {
            wrong.push(format!("{name} asked for nothing answers {}: {body}", caller.name));
        }
    }
    wrong
}

/// A request that only names its object.
fn bare(value: Value) -> Value {
    let Value::Object(all) = value else { return value };
    let kept = all.into_iter().filter_map(|(name, one)| match one {
        Value::Array(_) => Some((name, json!([]))),
        one if name == "id" || name == "key" || name.ends_with("Id") => Some((name, one)),
        _ => None,
    });
    Value::Object(kept.collect())
}

/// A public method is for the services that the page names, and no other.
async fn of_services(stage: &Stage, method: &MethodDescriptor, row: Option<&Vec<String>>) -> Vec<String> {
    let admitted: Vec<&str> = row.map(|row| row[0].split(", ").collect()).unwrap_or_default();
    let mut wrong = Vec::new();
    for service in ServiceName::ALL {
        let caller = Caller::service(stage, *service);
        let request = objects::request(&short(method));
        wrong.extend(if admitted.contains(&"all") || admitted.contains(&service.as_str()) {
            differs(stage, &caller, method, &objects::filled(stage, request).await, OK).await
        } else {
            differs(stage, &caller, method, &plain(request), NOT_ALLOWED).await
        });
    }
    wrong
}

/// Methods without caller checks rely on the envelope for the sender: an envelope without one is refused from any caller.
async fn of_envelopes(
    stage: &Stage,
    method: &MethodDescriptor,
    callers: impl Iterator<Item = (&Caller, &str)>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (caller, expected_answer) in callers {
        let expected_answer = if expected_answer == OK { "ENVELOPE_REFUSED" } else { expected_answer };
        wrong.extend(differs(stage, caller, method, &json!({"envelope": {}}), expected_answer).await);
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn internal_methods_are_for_the_services_written() {
    let stage = Stage::new().await;
    let written = table("Internal methods");
    let services: Vec<_> =
        ServiceName::ALL.iter().map(|name| (*name, Caller::service(&stage, *name))).collect();
    let (known, unknown) = (by_role(&stage), unknown(&stage).await);
    let mut wrong = Vec::new();
    let empty = json!({});
    for method in stage.methods.of("mycora.internal.v1") {
        let name = short(&method);
        let of_service = format!("{}/*", method.parent_service().name());
        let Some(row) = written.get(&name).or_else(|| written.get(&of_service)) else {
            wrong.push(format!("{name} has no row in specs/permissions.md"));
            continue;
        };
        let admitted: Vec<&str> = row[0].split(", ").collect();
        for (service, caller) in &services {
            let got = callers::answer(&stage, caller, &method, &empty).await;
            // An admitted caller gets the error of the request, and nothing else.
            let is_denied = got.contains(NOT_ALLOWED) || got.contains("IDENTITY");
            if is_denied == admitted.contains(&service.as_str()) {
                wrong.push(format!("{name}, {service}: {got}"));
            }
        }
        for (_, caller) in &known {
            wrong.extend(differs(&stage, caller, &method, &empty, NOT_ALLOWED).await);
        }
        for (caller, reason) in &unknown {
            wrong.extend(
                differs(&stage, caller, &method, &empty, expected_answer(&name, caller, reason)).await,
            );
        }
    }
    wrong.extend(of_tokens_used_twice(&stage).await);
    handshake::ends_with_the_alert_for_the_reason(&stage).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each public method called twice with one token: those of the page refuse the second time, and only those.
async fn of_tokens_used_twice(stage: &Stage) -> Vec<String> {
    let once = table("Methods that take a token once");
    let methods = public(stage);
    let mut wrong = surplus(once.keys(), &methods);
    for method in &methods {
        let name = short(method);
        let token = tokens::of(&stage.keys[&EXECUTOR], EXECUTOR);
        let caller = Caller::with_token("a token", stage, token);
        let body = plain(objects::request(&name));
        let first = callers::answer(stage, &caller, method, &body).await;
        let second = callers::answer(stage, &caller, method, &body).await;
        // What is not for actors takes no token at all.
        let is_spent = once.contains_key(&name) && first != NOT_ALLOWED;
        if first == "IDENTITY_UNUSABLE" || (second == "IDENTITY_UNUSABLE") != is_spent {
            wrong.push(format!("{name}, a token used twice: {first}, then {second}"));
        }
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_of_up_has_neither_internal_methods_nor_those_served_elsewhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let up = Up::start(&dir.path().join("data"), &[]);
    let pki = Pki::open(&dir.path().join("data/pki")).expect("`up` makes one");
    let mut wrong = Vec::new();
    let known = Methods::new();
    let methods: Vec<_> = known.of("mycora.internal.v1").into_iter().chain(known.elsewhere()).collect();
    for (name, tls) in stage::everybody(&pki, dir.path()) {
        let channel = rpc::Channel::remote(&format!("https://127.0.0.1:{}", up.port()), &tls, None);
        let channel = channel.expect("a way");
        for method in &methods {
            let refused =
                wire::call(channel.clone(), None, method, &json!({})).await.map_err(|status| status.code());
            if refused != Err(tonic::Code::Unimplemented) {
                wrong.push(format!("{}, {name}: {refused:?}", short(method)));
            }
        }
    }
    up.stop();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
