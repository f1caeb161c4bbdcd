//! Records that are broken by plain commands, one after the other.

use std::collections::BTreeSet;

use kv::Cmd;
use model::NodeState;
use proto::internal::v1 as wire;
use proto::v1;

use super::{Checked, Stocked, change, check, stocked, try_check};
use crate::places::{Redis, scenarios};
use crate::stage::{EXECUTOR, READER, Stage, key_of};

/// Executes a plain command on keys of the context: words that begin with `@` are keys.
async fn plain(stage: &Stage<impl Redis>, words: &[&str]) {
    let cmd = words[1..].iter().fold(Cmd::new(words[0]), |cmd, word| match word.strip_prefix('@') {
        Some(name) => cmd.arg(&stage.key_of(name)),
        None => cmd.arg(*word),
    });
    stage.command(cmd).await;
}

/// Asserts that a check has exactly this finding.
fn assert_only(checked: &Checked, code: &str, key: &str, why: &str) {
    assert_eq!(checked.codes(), [code], "{why}: {:#?}", checked.findings);
    assert_eq!(checked.findings[0].key, key, "{why}");
    assert!(!checked.findings[0].problem.is_empty(), "{why}");
    assert_eq!(checked.totals.findings, 1, "{why}");
}

/// Asserts that what these commands break is found, and is well once it is repaired.
async fn mends(stage: &Stage<impl Redis>, commands: &[&[&str]], code: &str, key: &str) {
    let why = format!("{commands:?}");
    for command in commands {
        plain(stage, command).await;
    }
    let found = check(stage, false).await;
    assert_only(&found, code, key, &why);
    assert!(found.findings[0].can_be_repaired && !found.findings[0].is_repaired, "{why}");
    assert_eq!((found.totals.repairable, found.totals.repaired), (1, 0), "{why}");
    let repaired = check(stage, true).await;
    assert_only(&repaired, code, key, &why);
    assert!(repaired.findings[0].is_repaired && !repaired.findings[0].repair.is_empty(), "{why}");
    assert_eq!(repaired.totals.repaired, 1, "{why}");
    check(stage, false).await.assert_healthy(&why);
}

/// Asserts that what these commands break is found, and stays as it is until the others undo it.
async fn stays(
    stage: &Stage<impl Redis>,
    commands: &[&[&str]],
    undone_by: &[&[&str]],
    code: &str,
    key: &str,
) {
    let why = format!("{commands:?}");
    for command in commands {
        plain(stage, command).await;
    }
    for repair in [false, true, false] {
        let found = check(stage, repair).await;
        assert_only(&found, code, key, &why);
        assert!(!found.findings[0].can_be_repaired && !found.findings[0].is_repaired, "{why}");
        assert_eq!(found.totals.repairable, 0, "{why}");
    }
    for command in undone_by {
        plain(stage, command).await;
    }
    check(stage, false).await.assert_healthy(&why);
}

/// Value of a field as it is.
async fn field(stage: &Stage<impl Redis>, key: &str, field: &str) -> String {
    stage.command(Cmd::new("HGET").arg(&stage.key_of(key)).arg(field)).await.text().unwrap()
}

async fn active(stage: &Stage<impl Redis>) -> BTreeSet<u32> {
    let mut answers =
        stage.flows().list_active_flows(wire::ListActiveFlowsRequest {}).await.unwrap().into_inner();
    let mut active = BTreeSet::new();
    while let Some(answer) = answers.message().await.unwrap() {
        active.extend(answer.flows.iter().filter(|flow| flow.due_millis == 0).map(|flow| flow.flow_id));
    }
    active
}

async fn unknown_and_unreadable_keys_are_named(stage: Stage<impl Redis>) {
    let Stocked { open, runner, .. } = stocked(&stage).await;
    stays(&stage, &[&["SET", "@surprise", "x"]], &[&["DEL", "@surprise"]], "KEY_UNKNOWN", "surprise").await;
    let seen = format!("@seen:{}", "ab".repeat(32));
    stays(&stage, &[&["SADD", &seen, "x"]], &[&["DEL", &seen]], "KEY_TYPE", &seen[1..]).await;
    let flow = format!("flow:{}", open.id);
    let was = field(&stage, &flow, "generation").await;
    let key = format!("@{flow}");
    stays(
        &stage,
        &[&["HSET", &key, "generation", "many"]],
        &[&["HSET", &key, "generation", &was]],
        "RECORD_UNREADABLE",
        &flow,
    )
    .await;
    let key = format!("@runner:{runner}");
    stays(
        &stage,
        &[&["HSET", &key, "envelope", "brown"]],
        &[&["HSET", &key, "envelope", "signed"]],
        "RECORD_UNREADABLE",
        &key[1..],
    )
    .await;
    let (nodes, job) = (format!("flow:{}:nodes", open.id), open.first_job.to_string());
    let was = field(&stage, &nodes, &job).await;
    let key = format!("@{nodes}");
    stays(&stage, &[&["HSET", &key, &job, "{"]], &[&["HSET", &key, &job, &was]], "RECORD_UNREADABLE", &nodes)
        .await;
}

async fn lists_of_flows_are_corrected(stage: Stage<impl Redis>) {
    let Stocked { open, ended, .. } = stocked(&stage).await;
    let (id, over) = (open.id.to_string(), ended.id.to_string());
    let (flow, over_flow) = (format!("flow:{id}"), format!("flow:{over}"));
    for list in ["@flows", "@flows:error", "@flows_ended"] {
        mends(&stage, &[&["ZADD", list, "4000000000", "4444"]], "FLOW_GONE", "flow:4444").await;
    }
    mends(&stage, &[&["SADD", "@flows_unmeasured", "4444"]], "FLOW_GONE", "flow:4444").await;
    mends(&stage, &[&["ZREM", "@flows", &id]], "FLOW_NOT_LISTED", &flow).await;
    for break_by in [
        &["ZREM", "@flows:started", &id][..],
        &["ZADD", "@flows:started", "1000000", &id],
        &["ZADD", "@flows:created", "1", &id],
    ] {
        mends(&stage, &[break_by], "FLOW_STATUS_LIST", &flow).await;
    }
    for due in ["4444-0123456789abcdef0123456789abcdef".to_owned(), ended.member(), "nothing".to_owned()] {
        mends(&stage, &[&["ZADD", "@due", "5", &due]], "DUE_STALE", "due").await;
    }
    // Its bytes do not count while it is not measured.
    let bytes = field(&stage, &over_flow, "bytes").await;
    let less = format!("-{bytes}");
    let breaks: [&[&str]; 2] =
        [&["ZREM", "@flows_ended", &over], &["HINCRBY", "@ids", "ended_flow_bytes", &less]];
    mends(&stage, &breaks, "FLOW_NEVER_EXPIRES", &over_flow).await;
    stage.sweep(model::Timestamp::now()).await;
    let ended = stage.command(Cmd::new("ZSCORE").arg(&stage.keys().flows_ended()).arg(&over)).await;
    assert!(!ended.is_nil(), "it was measured");
    check(&stage, false).await.assert_healthy("measured");
}

async fn a_flow_that_was_asleep_is_given_to_schedulers(stage: Stage<impl Redis>) {
    let Stocked { mut open, .. } = stocked(&stage).await;
    let (member, key) = (open.member(), format!("flow:{}", open.id));
    assert!(active(&stage).await.contains(&open.id));
    // A node runs.
    mends(&stage, &[&["SREM", "@flows_active", &member]], "FLOW_ASLEEP", &key).await;
    assert!(active(&stage).await.contains(&open.id));
    // Nothing of the flow is under way, so it rests; then an input comes.
    let rests = wire::CommitRequest {
        nodes: vec![change(&open, 0, NodeState::Completed)],
        rests: true,
        ..open.step()
    };
    stage.apply(&mut open, rests).await;
    assert!(!active(&stage).await.contains(&open.id));
    check(&stage, false).await.assert_healthy("resting");
    stage.push(&open, &model::FlowInput::Signal { name: "go".parse().unwrap() }).await;
    mends(&stage, &[&["SREM", "@flows_active", &member]], "FLOW_ASLEEP", &key).await;
    assert!(active(&stage).await.contains(&open.id));
    let end = wire::CommitRequest {
        nodes: vec![change(&open, 1, NodeState::Completed)],
        inputs_taken: 1,
        ..open.end()
    };
    stage.apply(&mut open, end).await;
    check(&stage, false).await.assert_healthy("ended");
}

async fn nodes_and_jobs_are_compared(stage: Stage<impl Redis>) {
    let Stocked { open, ended, .. } = stocked(&stage).await;
    let (nodes, first) = (format!("flow:{}:nodes", open.id), open.first_job.to_string());
    let (key, second) = (format!("@{nodes}"), (open.first_job + 1).to_string());
    let job = format!("job:{EXECUTOR}:{first}");
    let job_key = format!("@{job}");
    mends(&stage, &[&["HSET", &job_key, "status", "finished"]], "JOB_STATUS", &job).await;
    assert_eq!(field(&stage, &job, "status").await, "started");

    stage.command(Cmd::new("COPY").arg(&stage.key_of(&job)).arg(&stage.key_of("copy"))).await;
    plain(&stage, &["DEL", &job_key]).await;
    let found = check(&stage, false).await;
    let missing = found.findings.iter().find(|finding| finding.key == job).expect("the job");
    assert_eq!(missing.code(), v1::ContextFindingCode::JobMissing);
    assert!(!missing.can_be_repaired && !found.codes().contains(&"JOB_STATUS"), "{:?}", found.codes());
    stage.command(Cmd::new("RENAME").arg(&stage.key_of("copy")).arg(&stage.key_of(&job))).await;
    check(&stage, false).await.assert_healthy("undone");

    let was = field(&stage, &nodes, &second).await;
    stays(&stage, &[&["HDEL", &key, &second]], &[&["HSET", &key, &second, &was]], "NODE_COUNT", &nodes).await;
    // The second node runs, although the first one before it has not ended.
    let mut early: serde_json::Value = serde_json::from_str(&was).unwrap();
    early["state"] = "running".into();
    early["depends"] = serde_json::json!([open.first_job]);
    let (early, second_job) = (early.to_string(), format!("@job:{EXECUTOR}:{second}"));
    stays(
        &stage,
        &[&["HSET", &key, &second, &early], &["HSET", &second_job, "status", "started"]],
        &[&["HSET", &key, &second, &was], &["HSET", &second_job, "status", "waiting_for_prerequisites"]],
        "NODE_TOO_EARLY",
        &nodes,
    )
    .await;
    let (nodes, job) = (format!("flow:{}:nodes", ended.id), ended.first_job.to_string());
    let (key, was) = (format!("@{nodes}"), field(&stage, &nodes, &job).await);
    let job_key = format!("@job:{EXECUTOR}:{job}");
    let running = was.replace("\"state\":\"completed\"", "\"state\":\"running\"");
    assert_ne!(running, was);
    stays(
        &stage,
        &[&["HSET", &key, &job, &running], &["HSET", &job_key, "status", "started"]],
        &[&["HSET", &key, &job, &was], &["HSET", &job_key, "status", "finished"]],
        "NODE_NOT_ENDED",
        &nodes,
    )
    .await;
}

async fn parts_of_flows_that_are_gone_are_removed(stage: Stage<impl Redis>) {
    let Stocked { ended, job, .. } = stocked(&stage).await;
    for (command, key) in [
        (&["HSET", "@flow:4444:nodes", "1", "{}"][..], "flow:4444:nodes"),
        (&["HSET", "@flow:4444:signals", "go", "{}"], "flow:4444:signals"),
        (&["RPUSH", "@flow:4444:inputs", "{}"], "flow:4444:inputs"),
        (&["HSET", "@log:4444:7:1", "data", "x"], "log:4444:7:1"),
    ] {
        mends(&stage, &[command], "FLOW_PART_ORPHANED", key).await;
        assert_eq!(stage.command(Cmd::new("EXISTS").arg(&stage.key_of(key))).await.int(), Ok(0));
    }
    // A job whose flow is gone, with its reference to a blob.
    let stored = format!("job:{EXECUTOR}:{job}");
    stage.command(Cmd::new("COPY").arg(&stage.key_of(&stored)).arg(&stage.key_of("job:9:1"))).await;
    let breaks: [&[&str]; 1] = [&["HSET", "@job:9:1", "id", "1", "caller_id", "9", "flow_id", "4444"]];
    plain(&stage, &["HSET", "@ids", "job:9", "1"]).await;
    mends(&stage, &breaks, "FLOW_PART_ORPHANED", "job:9:1").await;

    // A flow whose record is gone, with everything that belongs to it.
    plain(&stage, &["DEL", &format!("@flow:{}", ended.id)]).await;
    let found = check(&stage, true).await;
    let codes: BTreeSet<_> = found.codes().into_iter().collect();
    assert!(codes.contains("FLOW_GONE") && codes.contains("FLOW_PART_ORPHANED"), "{:#?}", found.findings);
    assert!(found.findings.iter().all(|finding| finding.is_repaired), "{:#?}", found.findings);
    check(&stage, false).await.assert_healthy("removed");
    let message = format!("message:{EXECUTOR}:101");
    assert_eq!(stage.command(Cmd::new("EXISTS").arg(&stage.key_of(&message))).await.int(), Ok(0));
}

async fn a_lost_message_is_delivered(stage: Stage<impl Redis>) {
    let Stocked { sent, received, open, .. } = stocked(&stage).await;
    let carrier = format!("message:{EXECUTOR}:102");
    for key in [&sent, &carrier] {
        let full = stage.key_of(key);
        mends(&stage, &[&["LREM", "@msg_out", "0", &full]], "MESSAGE_LOST", key).await;
        mends(&stage, &[&["ZADD", "@msg_out_coordinator", "4000000000", &full]], "MESSAGE_TWICE", key).await;
        mends(&stage, &[&["ZREM", "@msg_out_coordinator", &full]], "MESSAGE_LOST", key).await;
    }
    for key in [&sent, &received] {
        mends(&stage, &[&["ZREM", "@letters", &stage.key_of(key)]], "MESSAGE_NOT_LISTED", key).await;
    }
    let taken = stage.router("r").await.take(3).await;
    let keys: Vec<_> = taken.iter().map(|message| message.message_key.as_str()).collect();
    assert!(keys.contains(&sent.as_str()) && keys.contains(&carrier.as_str()), "{keys:?}");

    let gone = stage.key_of("message:2:4444");
    for list in ["letters", "letters_done", "dead_letters", &format!("inbox:{READER}")] {
        mends(&stage, &[&["ZADD", &format!("@{list}"), "5", &gone]], "ENTRY_STALE", list).await;
    }
    let carriers = format!("flow:{}:messages", open.id);
    mends(&stage, &[&["SADD", &format!("@{carriers}"), &gone]], "ENTRY_STALE", &carriers).await;
    mends(&stage, &[&["ZADD", "@jobs", "5", "2:4444"]], "ENTRY_STALE", "jobs").await;
}

async fn blobs_are_read_and_compared(stage: Stage<impl Redis>) {
    let Stocked { blob, job, .. } = stocked(&stage).await;
    let (name, refs, hash) = (format!("blob:{blob}"), format!("blob_refs:{blob}"), blob.to_string());
    let (chunk, key) = (format!("@{name}:0"), stage.key_of(&format!("{name}:0")));
    let copy = stage.key_of("copy");
    stage.command(Cmd::new("RENAME").arg(&key).arg(&copy)).await;
    let found = check(&stage, true).await;
    assert_eq!(
        found.codes().into_iter().collect::<BTreeSet<_>>(),
        ["BLOB_CHUNK_MISSING", "KEY_UNKNOWN"].into()
    );
    stage.command(Cmd::new("RENAME").arg(&copy).arg(&key)).await;
    let first = stage.command(Cmd::new("GETRANGE").arg(&key).arg(0).arg(0)).await.bytes().unwrap();
    plain(&stage, &["SETRANGE", &chunk, "0", if first == b"x" { "y" } else { "x" }]).await;
    for repair in [true, false] {
        assert_only(&check(&stage, repair).await, "BLOB_CONTENT", &name, "other content");
    }
    stage.command(Cmd::new("SETRANGE").arg(&key).arg(0).arg(&first)).await;
    check(&stage, false).await.assert_healthy("undone");

    let gone = stage.key_of("job:2:4444");
    mends(&stage, &[&["SADD", &format!("@{refs}"), &gone]], "BLOB_REFERENCE_STALE", &refs).await;
    mends(&stage, &[&["DEL", &format!("@{refs}")]], "BLOB_NEVER_EXPIRES", &name).await;
    let idle = stage.command(Cmd::new("ZSCORE").arg(&stage.keys().blob_idle()).arg(&hash)).await;
    assert!(!idle.is_nil());
    let other = format!("blob_refs:{}", "cd".repeat(32));
    let job = stage.key_of(&format!("job:{EXECUTOR}:{job}"));
    let key = format!("@{other}");
    let missing = format!("blob:{}", "cd".repeat(32));
    stays(&stage, &[&["SADD", &key, &job]], &[&["DEL", &key]], "BLOB_MISSING", &missing).await;
}

async fn counters_are_counted_again(stage: Stage<impl Redis>) {
    let Stocked { runner, .. } = stocked(&stage).await;
    for counter in ["flows_open", "jobs_open", "ended_flow_bytes", "blob_bytes"] {
        let was = field(&stage, "ids", counter).await;
        mends(&stage, &[&["HINCRBY", "@ids", counter, "7"]], "COUNTER_WRONG", "ids").await;
        assert_eq!(field(&stage, "ids", counter).await, was, "{counter}");
    }
    let reader = READER.to_string();
    mends(&stage, &[&["HINCRBY", "@inbox_bytes", &reader, "7"]], "COUNTER_WRONG", "inbox_bytes").await;
    mends(&stage, &[&["HSET", "@inbox_bytes", "77", "7"]], "COUNTER_WRONG", "inbox_bytes").await;
    for counter in [format!("job:{EXECUTOR}"), format!("message:{EXECUTOR}"), "message:0".to_owned()] {
        let was = field(&stage, "ids", &counter).await;
        mends(&stage, &[&["HDEL", "@ids", &counter]], "ID_COUNTER_BEHIND", "ids").await;
        assert_eq!(field(&stage, "ids", &counter).await, was, "{counter}");
    }
    let (name, id) = (format!("runner:{runner}"), runner.to_string());
    mends(&stage, &[&["SREM", "@runners", &id]], "RUNNER_LIST", &name).await;
    mends(&stage, &[&["SADD", "@runners", "4444"]], "RUNNER_LIST", "runner:4444").await;
}

async fn actors_and_contexts_are_compared(stage: Stage<impl Redis>) {
    let (keys, connection) = stage.global();
    let checked = async |repair| try_check(&stage, 0, repair).await.unwrap();
    checked(false).await.assert_healthy("new");
    let reader = READER.to_string();
    let name = format!("actor:{reader}");
    for (command, code, key) in [
        (Cmd::new("SREM").arg(&keys.actors()).arg(&reader), "ACTOR_LIST", name.as_str()),
        (Cmd::new("SADD").arg(&keys.actors()).arg(4444), "ACTOR_LIST", "actor:4444"),
        (Cmd::new("HDEL").arg(&keys.actor_keys()).arg(&key_of(READER)), "ACTOR_KEY", &name),
        (Cmd::new("HSET").arg(&keys.ids()).arg("actor").arg(3), "ID_COUNTER_BEHIND", "ids"),
    ] {
        connection.cmd(command).await.unwrap();
        assert_only(&checked(false).await, code, key, code);
        let repaired = checked(true).await;
        assert_only(&repaired, code, key, code);
        assert!(repaired.findings[0].is_repaired, "{code} {key}");
        checked(false).await.assert_healthy(code);
    }
    for (command, undone_by, code, key) in [
        (
            Cmd::new("HSET").arg(&keys.actor_keys()).arg(&key_of(READER)).arg(EXECUTOR),
            Cmd::new("HSET").arg(&keys.actor_keys()).arg(&key_of(READER)).arg(READER),
            "ACTOR_KEY",
            name.as_str(),
        ),
        (
            Cmd::new("SADD").arg(&keys.contexts()).arg(9),
            Cmd::new("SREM").arg(&keys.contexts()).arg(9),
            "CONTEXT_MISSING",
            "context:9",
        ),
    ] {
        connection.cmd(command).await.unwrap();
        for repair in [false, true] {
            let found = checked(repair).await;
            assert_only(&found, code, key, code);
            assert!(!found.findings[0].can_be_repaired, "{code}");
        }
        connection.cmd(undone_by).await.unwrap();
        checked(false).await.assert_healthy(code);
    }
    // An actor that a program wrote is in no index.
    let written = Cmd::new("HSET").arg(&keys.actor(model::ActorId(99))).arg("id").arg(99);
    connection.cmd(written.arg("pubkey").arg(&"ef".repeat(32))).await.unwrap();
    checked(false).await.assert_healthy("written by a program");
}

scenarios!(
    unknown_and_unreadable_keys_are_named,
    lists_of_flows_are_corrected,
    a_flow_that_was_asleep_is_given_to_schedulers,
    nodes_and_jobs_are_compared,
    parts_of_flows_that_are_gone_are_removed,
    a_lost_message_is_delivered,
    blobs_are_read_and_compared,
    counters_are_counted_again,
    actors_and_contexts_are_compared
);
