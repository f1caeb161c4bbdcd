//! A request that comes a hundred times at once has one effect and one answer, for every method.

use std::collections::BTreeMap;

use identity::Identity;
use model::ActorId;
use prost_reflect::MethodDescriptor;
use rpc::ErrorView;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::matrix::objects;
use crate::matrix::stage::{ADMIN, CONTEXT, EXECUTOR, Stage};
use crate::matrix::wire::{self, short};

const TIMES: usize = 100;

/// Returns a caller that may call the method: admin or executor of the context, or the bootstrap identity.
fn asker(method: &str) -> Identity {
    match method {
        // Only whose messages they are.
        "MessageService/AcknowledgeMessage" => Identity::Actor(ActorId(EXECUTOR)),
        _ if method.starts_with("ActorService/") || method.starts_with("SupervisorService/") => {
            Identity::Admin
        }
        _ => Identity::Actor(ActorId(ADMIN)),
    }
}

/// Collects the names of the objects that an answer is about, by their paths in it. Their states may differ by then,
/// and a name that comes later may be missing.
fn objects_of(answer: &Value, place: &str, found: &mut BTreeMap<String, String>) {
    const NAMES: [&str; 7] = ["id", "uid", "key", "jobId", "jobKey", "firstJobId", "pubkey"];
    match answer {
        Value::Array(all) => {
            all.iter().enumerate().for_each(|(i, one)| objects_of(one, &format!("{place}[{i}]"), found));
        }
        Value::Object(all) => {
            for (name, value) in all {
                let place = format!("{place}.{name}");
                if NAMES.contains(&name.as_str()) {
                    found.insert(place.clone(), value.to_string());
                }
                objects_of(value, &place, found);
            }
        }
        _ => {}
    }
}

/// Returns true if two answers are about the same objects.
fn agree(one: &Value, other: &Value) -> bool {
    let (mut of_one, mut of_other) = (BTreeMap::new(), BTreeMap::new());
    objects_of(one, "", &mut of_one);
    objects_of(other, "", &mut of_other);
    of_one.iter().all(|(place, name)| of_other.get(place).is_none_or(|known| known == name))
}

/// How much there is of what requests make.
async fn census(stage: &Stage) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for (method, list) in [
        ("FlowService/ListFlows", "flows"),
        ("JobService/ListJobs", "jobs"),
        ("RunnerService/ListRunners", "runners"),
        ("ContextService/ListContexts", "contexts"),
        ("ActorService/ListActors", "actors"),
    ] {
        let is_global = method.starts_with("Context") || method.starts_with("Actor");
        let identity = if is_global { Identity::Admin } else { Identity::Actor(ActorId(ADMIN)) };
        let mut body = if is_global { json!({}) } else { json!({"contextId": CONTEXT}) };
        loop {
            let page = stage.ask_as(identity, method, body.clone()).await;
            *counts.entry(list).or_default() += page[list].as_array().map_or(0, Vec::len);
            match page["nextPageToken"].as_str() {
                None | Some("") => break,
                Some(token) => body["pageToken"] = token.into(),
            }
        }
    }
    counts
}

/// Calls many times at once; the one answer, or how it went wrong.
async fn repeated(stage: &Stage, method: &MethodDescriptor, body: &Value) -> Result<Value, String> {
    let tls = stage.certificate(asker(&short(method)));
    let channel = stage.channel(method.parent_service().name(), &tls);
    let mut calls = JoinSet::new();
    for _ in 0..TIMES {
        let (channel, method, body) = (channel.clone(), method.clone(), body.clone());
        calls.spawn(async move { wire::call(channel, None, &method, &body).await });
    }
    let mut first: Option<Value> = None;
    while let Some(answer) = calls.join_next().await {
        let answer = answer.expect("no panic").map_err(|status| {
            let view = ErrorView::from(&status);
            format!("refused: {:?} {} {}", view.code, view.reason, status.message())
        })?;
        match &first {
            None => first = Some(answer),
            Some(first) if agree(first, &answer) => {}
            Some(first) => return Err(format!("two answers:\n{first}\n{answer}")),
        }
    }
    first.ok_or_else(|| "no answer".to_owned())
}

/// Checks one method; the error describes what is wrong with it.
async fn wrong_with(stage: &Stage, method: &MethodDescriptor) -> Result<(), String> {
    let name = short(method);
    let mut body = objects::filled(stage, objects::request(&name)).await;
    body["requestId"] = format!("hundredfold-{name}").into();
    let before = census(stage).await;
    repeated(stage, method, &body).await?;
    let mut changed = 0;
    for (list, count) in census(stage).await {
        changed += count.abs_diff(before[list]);
    }
    let verb = method.name();
    let makes = ["Register", "Create", "Submit", "RunJob", "Delete"];
    let expected = usize::from(makes.iter().any(|prefix| verb.starts_with(prefix)) && name != DELETES_LETTER);
    if changed == expected { Ok(()) } else { Err(format!("{changed} objects came or went, not {expected}")) }
}

const DELETES_LETTER: &str = "MessageService/DeleteMessage";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_of_the_same_at_once_are_one() {
    let stage = Stage::new().await;
    let mut methods = stage.methods.of("mycora.v1");
    methods.retain(|method| method.input().get_field_by_name("request_id").is_some());
    // After it the machine takes nothing until it is resumed.
    methods.sort_by_key(|method| match method.name() {
        "Drain" => 1,
        "Resume" => 2,
        _ => 0,
    });
    assert!(methods.len() >= 32, "{} methods have request ids", methods.len());
    let mut wrong = Vec::new();
    for method in &methods {
        if let Err(why) = wrong_with(&stage, method).await {
            wrong.push(format!("{}: {why}", short(method)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
