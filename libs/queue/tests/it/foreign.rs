//! Work queues that others push into, and take from.

use model::execution::Outcome;
use model::{Execution, Grants};
use queue::{ForeignJob, JobRecordOutcome, QueueEventKind, SupervisorQueues};

use crate::setup::{QueueTestBench, ending, events, execution, job_key, offer, take, take_one};

const SHARED: &str = "hero:q:work:type:shell";

/// A bench whose queues are open, or closed.
async fn bench(open: bool) -> QueueTestBench {
    let bench = QueueTestBench::new();
    let supervisor = SupervisorQueues::new(bench.kv.clone(), 15).with_open_queues(open);
    supervisor.note_open().await.expect("noted");
    QueueTestBench { supervisor, ..bench }
}

impl QueueTestBench {
    fn push_foreign(&self, queue: &str, id: &str, fields: &[&str]) {
        let key = format!("hero:job:{id}");
        let _ = self.redis.raw(15, &[&["HSET", &key, "status", "dispatched"], fields].concat());
        let _ = self.redis.raw(15, &["LPUSH", queue, id]);
    }

    async fn settle(&self) -> Vec<ForeignJob> {
        let grant = |job: &Execution| match job.env_vars.get("DENIED") {
            None => Ok(Grants::default()),
            Some(why) => Err(why.clone()),
        };
        self.supervisor.settle_foreign(grant).await.expect("settled")
    }

    fn field_of(&self, key: &str, field: &str) -> String {
        let answer = self.redis.raw(15, &["HGET", key, field]);
        answer.lines().nth(1).unwrap_or_default().to_owned()
    }

    fn reply_to(&self, id: &str) -> String {
        let answer = self.redis.raw(15, &["LPOP", &format!("hero:q:reply:{id}")]);
        answer.lines().nth(1).unwrap_or_default().to_owned()
    }
}

#[tokio::test]
async fn what_others_push_is_refused_where_queues_are_closed() {
    let bench = bench(false).await;
    let (_worker, mut intake, _control) = bench.join(1).await;
    bench.push_foreign(SHARED, "abc", &["script", "echo", "script_type", "shell"]);
    bench.push_foreign(&format!("{SHARED}:group:default:prio:0"), "hero:job:abc", &[]);
    bench.push_foreign(SHARED, "no job at all", &[]);
    let ours = bench.accept(1).await;
    assert_eq!(take(&mut intake, 4).await, [1]);
    // By way of the blocking pop as well, and what is no text.
    let raw = kv::Cmd::new("RPUSH").arg(SHARED).arg(b"\xff\xfe");
    bench.kv.database(15).cmd(raw).await.expect("pushed");
    assert_eq!(take(&mut intake, 1).await, [0; 0]);

    let settled = bench.settle().await;
    let mut shown: Vec<_> = settled.iter().map(|foreign| foreign.entry.as_str()).collect();
    shown.sort_unstable();
    assert_eq!(shown, ["abc", "hero:job:abc", "no job at all", "\u{fffd}\u{fffd}"]);
    assert!(
        settled
            .iter()
            .all(|foreign| foreign.refused.as_ref().is_some_and(|why| why.starts_with("QUEUES_CLOSED")))
    );
    assert_eq!(bench.field_of("hero:job:abc", "status"), "error");
    assert!(bench.field_of("hero:job:abc", "error").contains("--open-queues"));
    assert!(bench.reply_to("abc").starts_with("QUEUES_CLOSED"));
    assert_eq!(bench.settle().await, [], "each is told once");
    assert_eq!(bench.field_of(&format!("hero:job:{ours}"), "state"), "started");

    // No instance takes a job that is pushed for a type without instances.
    bench.push_foreign("hero:q:work:type:v", "lonely", &["script", "x"]);
    bench.supervisor.find_foreign([model::ScriptType::V].into_iter()).await.expect("looked");
    assert_eq!(bench.settle().await.len(), 1);
    assert!(bench.reply_to("lonely").starts_with("QUEUES_CLOSED"));
}

#[tokio::test]
async fn what_others_push_is_run_and_answered_where_queues_are_open() {
    let bench = bench(true).await;
    let (worker, mut intake, _control) = bench.join(1).await;
    // To one instance: it is the one that takes it.
    let own = format!("{SHARED}:group:default:inst:1");
    let fields = ["script", "echo hi", "env_vars", r#"{"A":"1"}"#, "timeout", "30", "caller_id", "12"];
    bench.push_foreign(&own, "abc", &fields);
    bench.push_foreign(SHARED, "python", &["script", "1", "script_type", "python"]);
    bench.push_foreign(SHARED, "denied", &["script", "1", "env_vars", r#"{"DENIED":"policy"}"#]);
    assert_eq!(take(&mut intake, 1).await, [0; 0], "they are put aside");
    let settled = bench.settle().await;
    assert_eq!(settled.len(), 3);
    for (id, why) in [("python", "its type is `python`"), ("denied", "policy")] {
        assert!(bench.reply_to(id).contains(why), "{id}");
    }
    let taken = take_one(&mut intake).await;
    let job = &taken.execution;
    assert_eq!((job.env_vars["A"].as_str(), job.timeout_secs, job.caller_id.0), ("1", 30, 12));
    assert_eq!(
        (job.instance, job.group.as_ref().map(ToString::to_string)),
        (Some(1), Some("default".into()))
    );
    assert_eq!(bench.field_of("hero:job:abc", "status"), "started");
    let mut end = ending(job.job_key, Outcome::Succeeded);
    end.output_tail = "hi".into();
    assert_eq!(worker.finish(&end).await, Ok(JobRecordOutcome::Recorded));
    assert_eq!(bench.field_of("hero:job:abc", "status"), "finished");
    assert_eq!(bench.field_of("hero:job:abc", "output"), "hi");
    assert_eq!(bench.reply_to("abc"), r#"{"k":"v"}"#);

    // A job that is handed back stands where it was pushed, and is adopted again.
    bench.push_foreign(SHARED, "later", &["script", "x"]);
    assert_eq!(take(&mut intake, 1).await, [0; 0]);
    assert_eq!(bench.settle().await.len(), 1);
    assert_eq!(bench.supervisor.return_waiting().await, Ok(1));
    assert_eq!(bench.redis.raw(15, &["LRANGE", SHARED, "0", "-1"]), "*1\r\n$5\r\nlater\r\n");
    assert_eq!(take(&mut intake, 1).await, [0; 0]);
    assert_eq!(bench.settle().await[0].refused, None);
    assert_eq!(take_one(&mut intake).await.execution.node.as_str(), "later");
}

#[tokio::test]
async fn workers_of_others_take_what_they_can_run() {
    let bench = bench(true).await;
    let mut reader = bench.supervisor.events();
    // Only our instances know what files are: foreign clients do not find this one.
    let mut with_outputs = execution(1);
    with_outputs.outputs = vec!["a.txt".into()];
    bench.accept_as(with_outputs).await;
    for job in 2..=4 {
        bench.accept(job).await;
    }
    let key = |job| format!("hero:job:{}", job_key(job));
    assert_eq!(bench.redis.raw(15, &["LLEN", &format!("{SHARED}:closed")]), ":1\r\n");
    for job in 2..=3 {
        let popped = bench.redis.raw(15, &["LPOP", SHARED]);
        assert!(popped.contains(&job_key(job).to_string()), "{popped}");
    }
    bench.supervisor.sweep_open().await.expect("looked");
    assert_eq!(bench.field_of(&key(2), "state"), "queued", "nobody says to have it");
    let _ = bench.redis.raw(15, &["HSET", &key(2), "status", "started"]);
    bench.supervisor.sweep_open().await.expect("looked");
    assert_eq!(bench.field_of(&key(2), "claimed_by"), format!("legacy:{SHARED}"));
    assert_eq!(bench.supervisor.requeue_unclaimed().await, Ok(0), "what is missing may be theirs");
    let _ = bench.redis.raw(15, &["HSET", &key(2), "status", "finished", "output", "so"]);
    let swept = bench.supervisor.sweep_legacy(queue::OLD_WORKER_PATIENCE).await.expect("swept");
    assert_eq!((swept.ended, swept.lost), (1, 0));
    let seen = events(&mut reader, 3).await;
    let kinds: Vec<_> = seen.iter().map(|event| &event.kind).collect();
    assert!(
        matches!(
            kinds[..],
            [QueueEventKind::Started { .. }, QueueEventKind::Log(_), QueueEventKind::Ended(_)]
        ),
        "{kinds:?}"
    );
    assert_eq!(bench.redis.raw(15, &["EXISTS", "hero:legacy"]), ":0\r\n", "nothing is looked after any more");

    // The job without any report is put back in its place, after a while.
    let _ = bench.redis.raw(15, &["HSET", &key(3), "missing_since", "1"]);
    bench.supervisor.sweep_open().await.expect("looked");
    let (_worker, mut intake, _control) = bench.join(1).await;
    assert_eq!(take(&mut intake, 9).await, [1, 3, 4], "in their order, with those for ours alone");
    let known = bench.supervisor.accept(offer(execution(2))).await.expect("known");
    assert!(!known.is_new);
}
