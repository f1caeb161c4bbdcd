//! The object store of osis jobs.

use model::execution::Outcome as Kind;
use model::id::Uid;
use model::{ContextUid, ScriptType};
use runner::RunnerSettings;
use service::Shutdown;

use crate::setup::{AttemptTestOutcome, RunnerTestBench, job, settings};

async fn bench() -> RunnerTestBench {
    RunnerTestBench::with(|settings| RunnerSettings { types: vec![ScriptType::Osis], ..settings }).await
}

async fn run(bench: &mut RunnerTestBench, script: &str) -> AttemptTestOutcome {
    let outcome = bench.run(job(ScriptType::Osis, script)).await;
    assert_eq!(outcome.end.outcome, Kind::Succeeded, "{script}: {outcome:?}");
    outcome
}

#[tokio::test]
async fn objects_stay_between_jobs() {
    let mut bench = bench().await;
    run(
        &mut bench,
        r#"for n in 0..5 { osis_set("people", `p${n}`, #{ name: `n${n}`, age: 30 + n % 2, tags: ["a", n, ()] }); }"#,
    )
    .await;
    let outcome = run(
        &mut bench,
        r#"
        result("all", osis_list("people"));
        result("page", osis_list("people", "p1", 2));
        let one = osis_get("people", "p3");
        result("one", one.name + one.age + one.tags.len());
        result("none", osis_get("people", "x") == ());
        osis_index("people", "age");
        result("found", osis_find("people", "age", 31));
        result("found_page", osis_find("people", "age", 30, "p0", 1));
        one.age = 99;
        osis_set("people", "p3", one);
        result("after", osis_find("people", "age", 31));
        result("gone", osis_delete("people", "p0"));
        result("again", osis_delete("people", "p0"));
        "#,
    )
    .await;
    for (key, expected) in [
        ("all", r#"["p0","p1","p2","p3","p4"]"#),
        ("page", r#"["p2","p3"]"#),
        ("one", "n3313"),
        ("none", "true"),
        ("found", r#"["p1","p3"]"#),
        ("found_page", r#"["p2"]"#),
        ("after", r#"["p1"]"#),
        ("gone", "true"),
        ("again", "false"),
    ] {
        assert_eq!(outcome.result(key), expected, "{key}");
    }
}

#[tokio::test]
async fn contexts_do_not_see_each_other() {
    let mut bench = bench().await;
    run(&mut bench, r#"osis_set("c", "mine", #{ secret: 1 }); osis_index("c", "secret");"#).await;
    let script = r#"result("ids", osis_list("c")); result("is", osis_get("c", "mine") == ());
                    try { osis_find("c", "secret", 1); } catch (why) { result("why", why); }"#;
    let mut other = job(ScriptType::Osis, script);
    other.job_key.context = ContextUid(Uid::from_bits(2));
    let outcome = bench.run(other).await;
    assert_eq!((outcome.result("ids"), outcome.result("is")), ("[]", "true"), "{outcome:?}");
    assert!(outcome.result("why").contains("not indexed"), "{outcome:?}");
}

#[tokio::test]
async fn two_runners_write_at_once() {
    let mut bench = bench().await;
    let second = RunnerSettings { instance: 2, types: vec![ScriptType::Osis], ..settings(bench.dir.path()) };
    let second = runner::start(second, &bench.kv, 0, &Shutdown::new()).await.expect("a second runner");
    for n in 0..8 {
        let script = format!(
            "osis_index(\"c\", \"job\"); for n in 0..20 {{ osis_set(\"c\", `{n}-${{n}}`, #{{ job: {n} }}); }}"
        );
        let mut execution = job(ScriptType::Osis, &script);
        execution.instance = Some(1 + n % 2);
        execution.group = Some("default".parse().expect("a name"));
        bench.accept(execution).await;
    }
    let mut ends = 0;
    while ends < 8 {
        let events = bench.reader.next(std::future::pending()).await.expect("events");
        for event in &events {
            if let queue::QueueEventKind::Ended(end) = &event.kind {
                assert_eq!(end.outcome, Kind::Succeeded, "{end:?}");
                ends += 1;
            }
        }
        bench.reader.acknowledge(&events).await.expect("acknowledged");
    }
    second.drain().await;
    let outcome = run(
        &mut bench,
        r#"result("all", osis_list("c").len()); result("of", osis_find("c", "job", 7).len());"#,
    )
    .await;
    assert_eq!((outcome.result("all"), outcome.result("of")), ("160", "20"));
}

#[tokio::test]
async fn what_cannot_be_kept_is_named() {
    let mut bench = bench().await;
    for (script, part) in [
        (r#"osis_set("c", "a", [1])"#, "osis_set"),
        (r#"let s = ""; s.pad(300_000, 'x'); osis_set("c", "a", #{ s: s })"#, "the limit is 262144"),
        (r#"osis_set("c d", "a", #{})"#, "collection \"c d\""),
        (r#"osis_set("c", "", #{})"#, "it is empty"),
        (r#"osis_set("c", "a", #{ f: |x| x })"#, "cannot be written as JSON"),
        (r#"osis_find("c", "f", 1)"#, "not indexed"),
    ] {
        let outcome = bench.run(job(ScriptType::Osis, script)).await;
        assert_eq!(outcome.end.exit_code, Some(1), "{script}: {outcome:?}");
        assert!(outcome.log.contains(part), "{script}: {}", outcome.log);
    }
}
