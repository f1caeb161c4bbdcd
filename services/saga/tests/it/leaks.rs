//! Tenants whose names, sagas, effects and correlations are made to be taken for one another: no key, subject, consumer, list, metric or
//! error of one shows the other, and nothing that names another tenant than its subject is believed.

use std::collections::{BTreeMap, BTreeSet};

use broker::{Headers, Publication};
use bytes::Bytes;
use model::CommandId;
use proto::v1;
use saga::lane::{AGGREGATE_EVENTS, WORKFLOW_COMMANDS, WORKFLOW_EVENTS};
use saga::placement::SagaReplicaRole;
use serde_json::{Value, json};
use testkit::{PATIENCE, wait_until};
use tonic::{Code, Request, Status};

use crate::process::Upstream;
use crate::served::{ADMIN, ELSEWHERE, Rows, Served, ServiceOptions};
use crate::streams::publish;
use crate::walls::shown;

/// Names that begin alike: `a` with `b-order` and `a-b` with `order` are one text where parts are only put together.
pub(crate) const BOTH: [(&str, u32); 2] = [("a", ADMIN), ("a-b", ELSEWHERE)];
pub(crate) const TENANTS: &str = "a: { context: 1 }\na-b: { context: 2 }\n";
const SAGAS: [(&str, &str); 2] = [("order", "pay"), ("b-order", "b-pay")];
const STORES: [Rows; 2] = [Rows::Directory, Rows::Redis];

/// Two sagas with an effect each.
pub(crate) fn manifest(address: &str) -> String {
    let saga = |(name, effect): (&str, &str)| {
        format!(
            r#"
kind: Saga
name: {name}
version: 1
state: {{ id: text }}
sources: [{{ aggregate: Order }}]
start: {{ on: Placed, set: {{ id: "${{{{ event.data.id }}}}" }}, goto: work }}
steps:
  work: {{ effect: {effect}, input: {{ order: "${{{{ state.id }}}}" }}, on_success: {{ goto: wait }} }}
  wait: {{ on: {{ Wrong: {{ dead_letter: "${{{{ event.data.id }}}} is wrong" }} }} }}
---"#
        )
    };
    let effect = |(_, name): (&str, &str)| {
        let request = format!("{{ method: POST, path: /{name}, body: \"${{{{ input }}}}\" }}");
        // Answers are held until a busy machine has come to what is waited for.
        format!("  {name}: {{ request: {request}, timeouts: {{ start_to_close: 10m }} }}\n")
    };
    format!(
        "{}\nkind: EffectProvider\nname: upstream\ntransport: http\n\
         http: {{ base_url: \"http://{address}\", allow_hosts: [\"{address}\"], private: true }}\neffects:\n{}",
        SAGAS.map(saga).concat(),
        SAGAS.map(effect).concat()
    )
}

/// Correlations that might be taken for something else, or for one another.
pub(crate) fn hostile() -> Vec<String> {
    let texts = [
        ":",
        "a:b",
        ".",
        "a.b",
        "*",
        ">",
        "a.*.>",
        "%",
        "%h",
        "%2A",
        "%2a",
        "{}",
        "{sg:s:x:order:0}",
        "nul\0nul",
        "a b",
        "\r\n",
        "\u{202e}",
        "a",
        "\u{430}",
        "\u{ff41}",
        "\u{e9}",
        "e\u{301}",
        "a-b",
        "b-order",
    ];
    texts.iter().map(|text| (*text).to_owned()).chain(["x".repeat(256)]).collect()
}

pub(crate) fn data_of(tenant: &str) -> String {
    format!("data-of-tenant-{tenant}.")
}

pub(crate) fn other_than(tenant: &str) -> &'static str {
    if tenant == "a" { "a-b" } else { "a" }
}

async fn served(upstream: &Upstream, rows: Rows) -> Served {
    let (manifest, role) = (manifest(&upstream.address), SagaReplicaRole { sagas: true, effects: true });
    Served::with(ServiceOptions {
        manifest: &manifest,
        role,
        rows,
        tenants_file: TENANTS,
        ..ServiceOptions::default()
    })
    .await
}

/// Publishes a body under a subject, with an id of its own.
async fn raw(served: &Served, subject: String, id: &str, body: &Value) {
    let (message_id, payload) = (format!("{subject}-{id}"), Bytes::from(body.to_string()));
    publish(&*served.broker, Publication { subject, message_id, headers: Headers::new(), payload }).await;
}

async fn event(served: &Served, tenant: &str, kind: &str, id: &str, correlation: &str) {
    let body = json!({
        "event_id": id, "type": kind, "data": { "id": data_of(tenant) },
        "metadata": { "correlation_id": correlation },
    });
    raw(served, format!("tenant.{tenant}.aggregate.Order.x"), id, &body).await;
}

/// Instances that a tenant has, by saga and correlation, with their steps.
async fn instances(served: &Served, tenant: &str, admin: u32) -> BTreeMap<(String, String), String> {
    let request =
        v1::ListSagasRequest { tenant_id: tenant.to_owned(), page_size: 1000, ..Default::default() };
    let page = served.actor(admin).list_sagas(request).await.expect("a page").into_inner();
    page.sagas.into_iter().map(|found| ((found.saga, found.correlation_id), found.step)).collect()
}

async fn until_all_wait(served: &Served, count: usize) {
    let all_wait = || async {
        for (tenant, admin) in BOTH {
            let found = instances(served, tenant, admin).await;
            if found.len() != count || found.values().any(|step| step != "wait") {
                return None;
            }
        }
        Some(())
    };
    wait_until(all_wait, 2 * PATIENCE, "everything waits").await;
}

/// Messages of a stream: the subject and the body.
async fn messages(served: &Served, stream: &str) -> Vec<(String, String)> {
    let state = served.broker.stream(stream).await.expect("asked").expect("it is there");
    let mut messages = Vec::new();
    for sequence in 1..=state.last_sequence {
        let message = served.broker.message(stream, sequence).await.expect("asked").expect("it is there");
        messages.push((message.subject, String::from_utf8(message.payload.to_vec()).expect("JSON")));
    }
    messages
}

fn is_safe(text: &str, more: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c) || more.contains(c))
}

/// Keys and values of rows, subjects and bodies of messages, names and filters of consumers.
async fn look_below(served: &Served) {
    for (tenant, _) in BOTH {
        let (own, foreign) = (data_of(tenant), data_of(other_than(tenant)));
        for (saga, effect) in SAGAS {
            for lane in [format!("s:{tenant}:{saga}:0"), format!("e:{tenant}:{effect}:0")] {
                let rows = served.rows_of(&lane).await;
                let texts: Vec<_> = rows.iter().map(|(_, value)| String::from_utf8_lossy(value)).collect();
                // Calls that have ended do not keep what they were given.
                assert!(lane.starts_with("e:") || texts.iter().any(|text| text.contains(&own)), "{lane}");
                assert!(!texts.iter().any(|text| text.contains(&foreign)), "{lane}");
                let unsafe_keys: Vec<_> = rows.iter().filter(|(key, _)| !is_safe(key, ".%:")).collect();
                assert!(unsafe_keys.is_empty(), "{lane}: {unsafe_keys:?}");
            }
        }
    }
    for stream in [WORKFLOW_COMMANDS, WORKFLOW_EVENTS] {
        for (subject, body) in messages(served, stream).await {
            let tokens: Vec<_> = subject.split('.').collect();
            assert!(tokens.len() == 5 && is_safe(&subject, ".%"), "{subject}");
            let value: Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!(value["tenant_id"], tokens[1], "{subject}");
            assert!(!body.contains(&data_of(other_than(tokens[1]))), "{subject} {body}");
        }
    }
    let mut names = BTreeSet::new();
    for stream in [AGGREGATE_EVENTS, WORKFLOW_COMMANDS, WORKFLOW_EVENTS] {
        let list = served.suite.nats.ask(&format!("$JS.API.CONSUMER.LIST.{stream}"), "");
        let list: Value = serde_json::from_str(&list).expect("JSON");
        for consumer in list["consumers"].as_array().expect("consumers") {
            let name = consumer["name"].as_str().expect("a name");
            let filter = consumer["config"]["filter_subject"].as_str().expect("one filter");
            let tenant = filter.split('.').nth(1).expect("a tenant");
            assert!(name.ends_with(&format!("_{tenant}")) && is_safe(name, ""), "{name} reads {filter}");
            assert!(BOTH.iter().any(|(known, _)| *known == tenant), "{filter}");
            assert!(names.insert(name.to_owned()), "{name} stands twice");
        }
    }
    // Of each tenant: the aggregate and the verbs of each saga, the results and the commands of each effect.
    assert_eq!(names.len(), 2 * (2 * 2 + 2 * 2), "{names:?}");
}

/// Lists and metrics.
async fn look_at_what_is_shown(served: &Served, correlations: &[String]) {
    for (tenant, admin) in BOTH {
        let found: BTreeSet<_> = instances(served, tenant, admin).await.into_keys().collect();
        let of = |(saga, _): &(&str, &str)| {
            correlations.iter().map(|text| ((*saga).to_owned(), text.clone())).collect::<Vec<_>>()
        };
        assert_eq!(found, SAGAS.iter().flat_map(of).collect());
        let shown = shown(served, admin, tenant).await.expect("shown");
        assert!(shown.contains(&data_of(tenant)));
        let other = other_than(tenant);
        for secret in [
            data_of(other),
            format!(":{other}:"),
            format!("tenant.{other}."),
            format!("tenant_id: {other:?}"),
        ] {
            assert!(!shown.contains(&secret), "{tenant} is shown {secret}");
        }
    }
    let metrics = prometheus::TextEncoder::new().encode_to_string(&served.registry.gather()).expect("text");
    for secret in ["data-of", "tenant=", "\"a\"", "\"a-b\"", "s:a"] {
        assert!(!metrics.contains(secret), "{secret}: {metrics}");
    }
}

/// Checks that an error about a foreign thing is the same as one about an unknown thing.
async fn look_at_errors(served: &Served) {
    let refusal = |answer: Result<(), Status>, name: &str| {
        let status = answer.expect_err(name);
        (status.code(), status.message().replace(&format!(" {name} "), " NAME "))
    };
    for (tenant, admin) in BOTH {
        let of = |name: &str| (name.to_owned(), served.actor(admin));
        let mut refusals = Vec::new();
        for name in [other_than(tenant), "a-c"] {
            let (tenant_id, mut client) = of(name);
            let list = v1::ListSagasRequest { tenant_id: tenant_id.clone(), ..Default::default() };
            let lanes = v1::ListLanesRequest { tenant_id: tenant_id.clone(), ..Default::default() };
            let watch = v1::WatchSagasRequest { tenant_id: tenant_id.clone(), ..Default::default() };
            let pause = v1::PauseTenantRequest { tenant_id, ..Default::default() };
            refusals.push([
                refusal(client.list_sagas(list).await.map(drop), name),
                refusal(client.list_lanes(lanes).await.map(drop), name),
                refusal(client.watch_sagas(watch).await.map(drop), name),
                refusal(client.pause_tenant(pause).await.map(drop), name),
            ]);
        }
        assert_eq!(refusals[0], refusals[1]);
        assert!(refusals[0].iter().all(|(code, _)| *code == Code::NotFound), "{refusals:?}");
        // Look-alikes of the tenant's own name are other tenants, or none.
        for name in ["A", "\u{430}", "a ", "a\0", "a.b", "a:b", "a%2Db", "a_b", "a\u{2010}b", ""] {
            let (tenant_id, mut client) = of(name);
            let list = v1::ListSagasRequest { tenant_id, ..Default::default() };
            let code = client.list_sagas(list).await.map(drop).expect_err(name).code();
            assert!([Code::NotFound, Code::InvalidArgument].contains(&code), "{name:?}: {code}");
        }
        // Calls of the other tenant, by their ids.
        let request =
            v1::ListEffectsRequest { tenant_id: other_than(tenant).to_owned(), ..Default::default() };
        let other = BOTH.iter().find(|(other, _)| *other != tenant).expect("two").1;
        let calls = served.actor(other).list_effects(request).await.expect("a page").into_inner().calls;
        let mut refusals = Vec::new();
        for command in [calls[0].command_id.clone(), CommandId::from_bits(7).to_string()] {
            let (tenant_id, mut client) = of(tenant);
            let get = v1::GetEffectRequest {
                tenant_id: tenant_id.clone(),
                command_id: command.clone(),
                ..Default::default()
            };
            let cancel =
                v1::CancelEffectRequest { tenant_id, command_id: command.clone(), ..Default::default() };
            refusals.push([
                refusal(client.get_effect(get).await.map(drop), &command),
                refusal(client.cancel_effect(cancel).await.map(drop), &command),
            ]);
        }
        assert_eq!(refusals[0], refusals[1]);
        assert!(refusals[0].iter().all(|(code, _)| *code == Code::NotFound), "{refusals:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_look_alike_show_nothing_of_one_another() {
    for rows in STORES {
        let upstream = Upstream::start();
        let served = served(&upstream, rows).await;
        let correlations = hostile();
        for (number, correlation) in correlations.iter().enumerate() {
            for (tenant, _) in BOTH {
                event(&served, tenant, "Placed", &format!("e-{number}"), correlation).await;
            }
        }
        until_all_wait(&served, 2 * correlations.len()).await;
        // A correlation that is too long makes a letter without one; a bad event makes a letter of its own tenant.
        for (tenant, _) in BOTH {
            event(&served, tenant, "Placed", "long", &"é".repeat(150)).await;
            event(&served, tenant, "Wrong", "wrong", "a:b").await;
        }
        let written = || async { (served.metric("letters_written_total") == 8.0).then_some(()) };
        wait_until(written, PATIENCE, "letters of two sagas of two tenants").await;
        look_below(&served).await;
        look_at_what_is_shown(&served, &correlations).await;
        look_at_errors(&served).await;
        // Each call has a key of its own, and none has data of two.
        let calls = upstream.by_key();
        assert_eq!(calls.len(), 4 * correlations.len());
        assert_eq!(served.metric("foreign_messages_total"), 0.0);
    }
}

/// Letters of a tenant: their codes, sorted.
async fn codes(served: &Served, tenant: &str, admin: u32) -> Vec<String> {
    let request = v1::ListSagaDeadLettersRequest { tenant_id: tenant.to_owned(), ..Default::default() };
    let page = served.actor(admin).list_saga_dead_letters(request).await.expect("a page").into_inner();
    let mut codes: Vec<_> = page.dead_letters.into_iter().map(|letter| letter.code).collect();
    codes.sort_unstable();
    codes
}

/// A result of a call, as tenant `tenant` says under the subject of `subject`.
fn result(tenant: &str, command: &str, saga: &str, correlation: &str) -> Value {
    json!({
        "tenant_id": tenant, "command_id": command, "effect_name": "pay", "result_type": "Succeeded",
        "payload": {}, "timestamp": 1, "reply_to": { "saga": saga, "correlation": correlation, "run": 0, "step": "work" },
        "metadata": {},
    })
}

/// Has calls of both tenants be open; gives the id of one of the first tenant's.
async fn open_call(served: &Served, upstream: &Upstream) -> String {
    for (tenant, _) in BOTH {
        for correlation in ["x", "y"] {
            event(served, tenant, "Placed", &format!("e-{correlation}"), correlation).await;
        }
    }
    let open = || async { (upstream.count("/pay") == 4 && upstream.count("/b-pay") == 4).then_some(()) };
    wait_until(open, PATIENCE, "calls are open").await;
    let request = v1::ListEffectsRequest {
        tenant_id: "a".to_owned(),
        effect: "pay".to_owned(),
        saga: "order".to_owned(),
        correlation_id: "x".to_owned(),
        ..Default::default()
    };
    let calls = served.actor(ADMIN).list_effects(request).await.expect("a page").into_inner().calls;
    calls[0].command_id.clone()
}

/// Publishes bodies that name the other tenant: an event, a verb, a command, a result; and a verb whose answer would become an event
/// of the other tenant. Gives the letters that they become.
async fn publish_foreign(served: &Served, command: &str) -> Vec<&'static str> {
    let verb = |tenant: &str, reply_to: &str| {
        json!({
            "tenant_id": tenant, "request_id": "r", "correlation": "x", "verb": { "kill": { "reason": "forged" } },
            "reply_to": { "subject": reply_to, "token": "t" },
        })
    };
    let event = json!({
        "event_id": "f", "type": "Placed", "tenant_id": "a-b", "data": { "id": "f" },
        "metadata": { "correlation_id": "f" },
    });
    let unknown = CommandId::from_bits(9);
    let ordered = json!({
        "tenant_id": "a-b", "command_id": unknown.to_string(), "effect_name": "pay", "payload": {}, "metadata": {},
        "reply_to": { "saga": "order", "correlation": "x", "run": 0, "step": "work" },
    });
    for (number, (subject, body)) in [
        ("aggregate.Order.x".to_owned(), event),
        ("workflow.order.x".to_owned(), verb("a-b", "_INBOX.t")),
        ("workflow.order.x".to_owned(), verb("a", "tenant.a-b.aggregate.Order.x")),
        (format!("effect.pay.{unknown}"), ordered),
        (format!("effect_result.pay.{command}"), result("a-b", command, "order", "x")),
    ]
    .into_iter()
    .enumerate()
    {
        raw(served, format!("tenant.a.{subject}"), &format!("foreign-{number}"), &body).await;
    }
    // Both sagas read events of the aggregate.
    vec!["ENVELOPE", "TENANT", "TENANT", "TENANT", "TENANT", "TENANT"]
}

/// Publishes results of an open command: of the other tenant, for another instance, and for another saga; and one of no command.
async fn publish_forged(served: &Served, command: &str) {
    let unknown = CommandId::from_bits(11).to_string();
    for (number, (tenant, command, saga, correlation)) in [
        ("a-b", command, "order", "x"),
        ("a", command, "order", "y"),
        ("a", &unknown, "order", "x"),
        ("a", command, "b-order", "x"),
    ]
    .into_iter()
    .enumerate()
    {
        let body = result(tenant, command, saga, correlation);
        raw(
            served,
            format!("tenant.{tenant}.effect_result.pay.{command}"),
            &format!("forged-{number}"),
            &body,
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_names_another_tenant_than_its_subject_is_dead_and_a_forged_address_is_not_believed() {
    for rows in STORES {
        let upstream = Upstream::start();
        upstream.hold("/pay");
        upstream.hold("/b-pay");
        let served = served(&upstream, rows).await;
        let command = open_call(&served, &upstream).await;
        let wanted = publish_foreign(&served, &command).await;
        let dead = || async { (codes(&served, "a", ADMIN).await == wanted).then_some(()) };
        wait_until(dead, PATIENCE, "they are dead").await;
        assert_eq!(served.metric("letters_written_total"), wanted.len() as f64, "{rows:?}");

        publish_forged(&served, &command).await;
        let ignored = || async {
            let families = served.registry.gather();
            let family = families.iter().find(|family| family.name() == "mycora_saga_transitions_total")?;
            let is_ignored = |metric: &&prometheus::proto::Metric| {
                metric.get_label().iter().any(|label| label.value() == "ignored")
            };
            let ignored = family.get_metric().iter().filter(is_ignored);
            let ignored = ignored.map(|metric| metric.get_counter().get_value());
            (ignored.sum::<f64>() >= 3.0).then_some(())
        };
        wait_until(ignored, PATIENCE, "they are ignored and counted").await;
        for (tenant, admin) in BOTH {
            let found = instances(&served, tenant, admin).await;
            assert!(found.len() == 4 && found.values().all(|step| step == "work"), "{found:?}");
        }
        assert!(codes(&served, "a-b", ELSEWHERE).await.is_empty());
        // Nothing was published for the other tenant.
        assert_eq!(messages(&served, AGGREGATE_EVENTS).await.len(), 4 + 1);
        upstream.release();
        until_all_wait(&served, 4).await;
        assert_eq!(served.metric("foreign_messages_total"), 0.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_that_name_another_tenant_are_refused_by_every_method() {
    let upstream = Upstream::start();
    let served = served(&upstream, Rows::Directory).await;
    for name in ["a-b", "A", "a,a-b", "a%20", ""] {
        macro_rules! refused {
            ($method:ident, $request:expr) => {{
                let mut request = Request::new($request);
                request.metadata_mut().insert("x-tenant-id", name.parse().expect("ASCII"));
                let status = served.actor(ADMIN).$method(request).await.map(drop).expect_err(name);
                let reason = rpc::ErrorView::from(&status).reason;
                assert_eq!(
                    (status.code(), reason.as_str()),
                    (Code::InvalidArgument, "TENANT_MISMATCH"),
                    "{name:?}"
                );
                assert!(!status.message().contains("a-b"), "{status}");
            }};
        }
        let tenant_id = || "a".to_owned();
        refused!(list_sagas, v1::ListSagasRequest { tenant_id: tenant_id(), ..Default::default() });
        refused!(watch_sagas, v1::WatchSagasRequest { tenant_id: tenant_id(), ..Default::default() });
        refused!(list_effects, v1::ListEffectsRequest { tenant_id: tenant_id(), ..Default::default() });
        refused!(list_lanes, v1::ListLanesRequest { tenant_id: tenant_id(), ..Default::default() });
        refused!(
            list_saga_dead_letters,
            v1::ListSagaDeadLettersRequest { tenant_id: tenant_id(), ..Default::default() }
        );
        refused!(pause_tenant, v1::PauseTenantRequest { tenant_id: tenant_id(), ..Default::default() });
        refused!(
            list_saga_definitions,
            v1::ListSagaDefinitionsRequest { tenant_id: tenant_id(), ..Default::default() }
        );
    }
}
