//! A supervisor and instances on a Redis of their own.

use std::collections::BTreeMap;
use std::future::pending;
use std::num::NonZeroU32;

use keys::InstanceRef;
use kv::Kv;
use model::execution::{AttemptEnd, Outcome};
use model::id::Uid;
use model::{
    ActorId, Attempt, ContextId, ContextUid, Execution, FlowId, FlowUid, Grants, Isolation, JobId, JobKey,
    ScriptSource, ScriptType, Timestamp,
};
use queue::{
    AcceptCondition, ClaimedJob, InstanceCommandReader, InstanceDescriptor, InstanceSession, JobConsumer,
    JobEndReport, JobOffer, QueueEvent, QueueEventReader, SupervisorQueues,
};
use testkit::RedisServer;

pub(crate) const COORDINATOR: &str = "c0ffee";

pub(crate) struct QueueTestBench {
    pub(crate) redis: RedisServer,
    pub(crate) kv: Kv,
    pub(crate) supervisor: SupervisorQueues,
}

impl QueueTestBench {
    pub(crate) fn new() -> Self {
        Self::on(RedisServer::start())
    }

    pub(crate) fn on(redis: RedisServer) -> Self {
        let kv = Kv::new(redis.url().parse().expect("the url of a test server"));
        let supervisor = SupervisorQueues::new(kv.clone(), 15);
        Self { redis, kv, supervisor }
    }

    pub(crate) async fn accept(&self, job: u32) -> JobKey {
        self.accept_as(execution(job)).await
    }

    pub(crate) async fn accept_as(&self, execution: Execution) -> JobKey {
        let key = execution.job_key;
        let accepted = self.supervisor.accept(offer(execution)).await.expect("an accepted job");
        assert!(accepted.is_new);
        key
    }

    pub(crate) async fn join(&self, number: u32) -> (InstanceSession, JobConsumer, InstanceCommandReader) {
        self.join_giving(number, Isolation::Basic).await
    }

    pub(crate) async fn join_giving(
        &self,
        number: u32,
        isolation: Isolation,
    ) -> (InstanceSession, JobConsumer, InstanceCommandReader) {
        let about = InstanceDescriptor { isolation, ..about() };
        queue::join(&self.kv, 15, instance(number), about, |_| true).await.expect("a place for the instance")
    }

    /// All keys that match, as the server lists them.
    pub(crate) fn keys(&self, pattern: &str) -> String {
        self.redis.raw(15, &["KEYS", pattern])
    }
}

pub(crate) fn instance(number: u32) -> InstanceRef {
    InstanceRef { script_type: ScriptType::Shell, group: "default".parse().expect("a name"), number }
}

pub(crate) fn about() -> InstanceDescriptor {
    InstanceDescriptor {
        hostname: "here".into(),
        pid: std::process::id(),
        process_start: 1,
        slots: 4,
        isolation: model::Isolation::Basic,
        layers: vec!["session".into()],
        version: "0.1.0".into(),
    }
}

pub(crate) fn job_key(job: u32) -> JobKey {
    JobKey {
        context: ContextUid(Uid::from_bits(1)),
        flow: FlowUid(Uid::from_bits(2)),
        job: JobId(job),
        attempt: Attempt(1),
    }
}

pub(crate) fn execution(job: u32) -> Execution {
    Execution {
        context_id: ContextId(1),
        flow_id: FlowId(7),
        caller_id: ActorId(1),
        env_vars: BTreeMap::from([("A".into(), "\"b\"\n".into())]),
        timeout_secs: 60,
        ..Execution::of_script(
            job_key(job),
            "flow".parse().expect("a name"),
            format!("node-{job}").parse().expect("a name"),
            ScriptType::Shell,
            ScriptSource::Inline(format!("echo {job}")),
        )
    }
}

pub(crate) fn offer(execution: Execution) -> JobOffer {
    let (coordinator, grants, condition) = (COORDINATOR.into(), Grants::default(), AcceptCondition::None);
    JobOffer { execution, coordinator, grants, condition, weight: NonZeroU32::MIN }
}

pub(crate) fn ending(job_key: JobKey, outcome: Outcome) -> JobEndReport {
    let end = AttemptEnd {
        outcome,
        exit_code: Some(0),
        reason: None,
        result: BTreeMap::from([("k".into(), "v".into())]),
        outputs: BTreeMap::new(),
        output_bytes: 0,
        ended: Vec::new(),
        instance: Some(instance(1).to_string()),
        start_time: Some(Timestamp::from_millis(1)),
        end_time: Timestamp::from_millis(2),
    };
    JobEndReport { job_key, end, last_log: None, output_tail: String::new() }
}

pub(crate) async fn take(intake: &mut JobConsumer, free: usize) -> Vec<u32> {
    let taken = intake.next(free, async {}).await.expect("an answer");
    taken.iter().map(|taken| taken.execution.job_key.job.0).collect()
}

pub(crate) async fn take_one(intake: &mut JobConsumer) -> ClaimedJob {
    loop {
        let mut taken = intake.next(1, pending()).await.expect("an answer");
        if let Some(taken) = taken.pop() {
            return taken;
        }
    }
}

/// Reads until there are `count` events.
pub(crate) async fn events(reader: &mut QueueEventReader, count: usize) -> Vec<QueueEvent> {
    let mut events = Vec::new();
    while events.len() < count {
        events.extend(reader.next(pending()).await.expect("an answer"));
    }
    assert_eq!(events.len(), count, "{events:#?}");
    events
}
