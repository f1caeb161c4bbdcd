//! Pushed entries that are no messages, or that cannot be delivered: they stop no other messages.

use kv::{Arg, Cmd};
use model::{ActorId, MessageId};
use proto::internal::v1 as wire;
use proto::internal::v1::held_message::Kind;
use proto::v1;
use testkit::{PATIENCE, wait_until};

use crate::places::{Redis, scenarios};
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, Stage, json};

const JOBS: &str = r#"{"id": 1, "script": "1", "script_type": "python"}"#;

async fn allow(stage: &Stage<impl Redis>, raw_publish: bool) {
    let settings = format!(r#"{{"executors_may_submit":true,"raw_publish":{raw_publish}}}"#);
    stage.command(Cmd::new("HSET").arg(&stage.keys().context()).arg("settings").arg(&settings)).await;
}

fn key(stage: &Stage<impl Redis>, id: u32) -> String {
    format!("{}message:{EXECUTOR}:{id}", stage.keys().prefix())
}

async fn write(stage: &Stage<impl Redis>, key: &str, fields: &[(&str, &[u8])]) {
    let set =
        fields.iter().fold(Cmd::new("HSET").arg(key), |set, (field, value)| set.arg(*field).arg(*value));
    stage.command(set).await;
}

async fn push<'a>(stage: &Stage<impl Redis>, entry: impl Into<Arg<'a>>) {
    stage.command(Cmd::new("LPUSH").arg(&stage.keys().msg_out()).arg(entry)).await;
    stage.command(Cmd::new("PUBLISH").arg(&stage.keys().hint_channel()).arg("out")).await;
}

async fn field(stage: &Stage<impl Redis>, key: &str, field: &str) -> String {
    let value = stage.command(Cmd::new("HGET").arg(key).arg(field)).await;
    value.optional_text().unwrap().unwrap_or_default()
}

async fn is_refused(stage: &Stage<impl Redis>, key: &str) -> String {
    let look = || async { Some(field(stage, key, "error").await).filter(|error| !error.is_empty()) };
    let error = wait_until(look, PATIENCE, format!("{key} is refused")).await;
    assert_eq!(field(stage, key, "status").await, "error");
    error
}

async fn listed(stage: &Stage<impl Redis>) -> Vec<v1::Message> {
    let list = v1::ListMessagesRequest { context_id: CONTEXT, page_size: 1000, ..Default::default() };
    let request = wire::FindMessagesRequest { list: Some(list), on_behalf_of: ADMIN };
    stage.message_box().find_messages(request).await.unwrap().into_inner().page.unwrap().messages
}

async fn the_queue_goes_on_whatever_is_pushed(stage: Stage<impl Redis>) {
    allow(&stage, true).await;
    let prefix = stage.keys().prefix().to_owned();
    // No keys of messages, and keys of what belongs to others: nothing of that is touched.
    let foreign = "{8}:message:2:1".to_owned();
    let others = [foreign.clone(), format!("{prefix}flow:1:nodes"), format!("{prefix}message:02:1")];
    for other in &others {
        write(&stage, other, &[("status", b"dispatched")]).await;
        push(&stage, other).await;
    }
    push(&stage, b"\xff\xfe").await;
    push(&stage, "").await;
    // What is no hash, or not any more.
    stage.command(Cmd::new("SET").arg(&key(&stage, 1)).arg("x")).await;
    push(&stage, &key(&stage, 1)).await;
    // No text, too much, a log that cannot be written again, a place that is no set.
    write(&stage, &key(&stage, 2), &[("job", b"\xff\xfe"), ("topic", b"\xff")]).await;
    let much = vec![b'x'; 9 * 1024 * 1024];
    write(&stage, &key(&stage, 3), &[("job", JOBS.as_bytes()), ("topic", &much)]).await;
    write(&stage, &key(&stage, 4), &[("logs", b"[1e999, {\"a\": 1}]")]).await;
    write(&stage, &key(&stage, 5), &[("revision", b"1"), ("flow_id", b"9"), ("logs", b"x")]).await;
    stage.command(Cmd::new("SET").arg(&format!("{prefix}flow:9:messages")).arg("x")).await;
    let fields: Vec<String> = (0..20_000).map(|n| format!(r#""field-{n}":0"#)).collect();
    let wrong = format!("{{{}}}", fields.join(","));
    write(&stage, &key(&stage, 6), &[("job", wrong.as_bytes())]).await;
    for id in 2..=6 {
        push(&stage, &key(&stage, id)).await;
    }
    write(&stage, &key(&stage, 7), &[("job", JOBS.as_bytes())]).await;
    push(&stage, &key(&stage, 7)).await;

    let mut router = stage.router("r").await;
    let message = router.take(1).await.remove(0);
    assert_eq!(message.message_key, "message:2:7");
    for id in 2..=6 {
        let error = is_refused(&stage, &key(&stage, id)).await;
        assert!(error.len() < 10_000, "{}", error.len());
    }
    for other in &others {
        assert_eq!(stage.hash(other).await.len(), 1, "{other}");
    }
    let held = Cmd::new("ZRANGE").arg(&stage.keys().msg_out_coordinator()).arg(0).arg(-1);
    assert_eq!(stage.command(held).await.texts().unwrap(), [key(&stage, 7)]);
    let found = listed(&stage).await;
    assert_eq!(found.len(), 6, "all but what is no hash are listed");

    // What a router holds may become anything meanwhile.
    stage.command(Cmd::new("DEL").arg(&key(&stage, 7))).await;
    stage.command(Cmd::new("SET").arg(&key(&stage, 7)).arg("x")).await;
    write(&stage, &key(&stage, 8), &[("job", JOBS.as_bytes())]).await;
    push(&stage, &key(&stage, 8)).await;
    drop(router);
    let mut router = stage.router("r").await;
    assert_eq!(router.take(1).await.remove(0).message_key, "message:2:8");
    router.settle(&[message], "").await;
    router.becomes("message:2:8", 3).await;
    let acknowledged = || async {
        Some(field(&stage, &key(&stage, 8), "status").await).filter(|status| status == "acknowledged")
    };
    wait_until(acknowledged, PATIENCE, "it is settled").await;
}

async fn a_step_is_made_whole_whatever_stands_where_its_messages_are(stage: Stage<impl Redis>) {
    let mut flow = stage.started(3).await;
    let of = |id| stage.keys().message(ActorId(EXECUTOR), MessageId(id));
    // Where messages of ours are to be.
    stage.command(Cmd::new("SET").arg(&of(1)).arg("x")).await;
    write(&stage, &of(2), &[("recipient", b"aa"), ("open", b"7")]).await;
    let messages = (1..=3).map(|id| flow.message(id)).collect();
    let step = wire::CommitRequest { messages, ..flow.step() };
    stage.apply(&mut flow, step).await;
    for id in 1..=3 {
        let message = stage.hash(&of(id)).await;
        assert_eq!((&*message["open"], message.contains_key("recipient")), ("2", false), "{id}");
    }
    // Where they were.
    stage.command(Cmd::new("DEL").arg(&of(1))).await;
    stage.command(Cmd::new("SET").arg(&of(1)).arg("x")).await;
    write(&stage, &of(2), &[("open", b"many")]).await;
    let ended = |place: u32| wire::NodeCommit {
        job_id: flow.first_job + place,
        node_json: json(&flow.node(place)),
        job_status: "finished".to_owned(),
        ended_message: format!("message:{EXECUTOR}:{}", place + 1),
        ..Default::default()
    };
    let step = wire::CommitRequest { nodes: (0..3).map(ended).collect(), ..flow.step() };
    stage.apply(&mut flow, step).await;
    let left = [field(&stage, &of(2), "open").await, field(&stage, &of(3), "open").await];
    assert_eq!(left, ["many", "1"]);
}

async fn nothing_passes_for_ours(stage: Stage<impl Redis>) {
    let of_admin = format!("{}message:{ADMIN}:1", stage.keys().prefix());
    let letter: [(&str, &[u8]); 12] = [
        ("revision", b"1"),
        ("status", b"dispatched"),
        ("recipient", b"aa"),
        ("addresses", b"[]"),
        ("from_pubkey", b"bb"),
        ("to", b"3"),
        ("message", b"believe me"),
        ("message_type", b"chat"),
        ("created_at", b"1"),
        ("expires_at", b"9999999999"),
        ("timeout_ack", b"60"),
        ("flow_id", b""),
    ];
    let nodes: [(&str, &[u8]); 6] = [
        ("revision", b"1"),
        ("status", b"dispatched"),
        ("open", b"1"),
        ("flow_id", b"1"),
        ("nodes", br#"[{"job_key":"x"}]"#),
        ("created_at", b"1"),
    ];
    let mut router = stage.router("r").await;
    for (key, fields) in [(of_admin.clone(), &letter[..]), (key(&stage, 1), &nodes[..])] {
        write(&stage, &key, fields).await;
        push(&stage, &key).await;
        assert!(is_refused(&stage, &key).await.starts_with("RAW_PUBLISH_OFF"));
        // That it was refused makes it no message of ours.
        write(&stage, &key, fields).await;
        push(&stage, &key).await;
    }
    let message = v1::SendMessageRequest {
        context_id: CONTEXT,
        to: "3".to_owned(),
        message_type: v1::MessageType::Chat.into(),
        ..Default::default()
    };
    let publish = wire::PublishRequest { message: Some(message), on_behalf_of: EXECUTOR };
    // Out behind them, so that they were looked at when it comes.
    drop(router);
    let sent = stage.message_box().publish(publish).await.unwrap().into_inner().message.unwrap();
    router = stage.router("r").await;
    assert_eq!(router.take(1).await.remove(0).message_key, sent.key);
    let held = Cmd::new("ZRANGE").arg(&stage.keys().msg_out_coordinator()).arg(0).arg(-1);
    assert_eq!(
        stage.command(held).await.texts().unwrap(),
        [format!("{}{}", stage.keys().prefix(), sent.key)]
    );

    // Where it is allowed it is what its jobs say, the second time as well.
    allow(&stage, true).await;
    let pushed = key(&stage, 2);
    write(&stage, &pushed, &[&letter[..7], &nodes[..3], &[("job", JOBS.as_bytes())]].concat()).await;
    push(&stage, &pushed).await;
    for _ in 0..2 {
        drop(router);
        router = stage.router("r").await;
        let held = router.take(2).await;
        let held = held.into_iter().find(|held| held.message_key == "message:2:2").unwrap();
        assert!(matches!(held.kind, Some(Kind::RawJobs(_))), "{:?}", held.kind);
    }
}

scenarios!(
    a_step_is_made_whole_whatever_stands_where_its_messages_are,
    the_queue_goes_on_whatever_is_pushed,
    nothing_passes_for_ours
);
