use super::*;
use crate::legacy::{self, LegacyQueue};
use crate::nonce::ActorNonce;
use crate::samples::key_samples;
use model::id::Uid;
use model::{Attempt, FlowUid, JobId};
use proptest::prelude::*;

fn any_queue() -> impl Strategy<Value = WorkQueue> {
    let place = proptest::option::of(("[a-zA-Z0-9_-]{1,12}", proptest::option::of(any::<u32>())));
    (0_usize..7, place, 0_usize..3, 0_u8..3, any::<bool>()).prop_map(
        |(script_type, place, level, priority, closed)| {
            let script_type = ScriptType::ALL[script_type];
            let queue = match place {
                None => WorkQueue::shared(script_type),
                Some((group, number)) => {
                    let group: Name = group.parse().expect("made of allowed characters");
                    match number {
                        None => WorkQueue::group(script_type, group),
                        Some(number) => WorkQueue::instance(script_type, group, number),
                    }
                }
            };
            let queue = queue.with_isolation(Isolation::ALL[level]).with_priority(priority);
            if closed { queue.closed() } else { queue }
        },
    )
}

fn any_instance() -> impl Strategy<Value = InstanceRef> {
    (0_usize..7, "[a-zA-Z0-9_-]{1,12}", any::<u32>()).prop_map(|(script_type, group, number)| InstanceRef {
        script_type: ScriptType::ALL[script_type],
        group: group.parse().expect("made of allowed characters"),
        number,
    })
}

fn any_old() -> impl Strategy<Value = LegacyQueue> {
    (0_usize..4, "[a-zA-Z0-9_.@-]{1,12}").prop_map(|(form, name)| {
        let prefix = ["hero:job:actor_queue:", "hero:job:", "hero:work_queue:", "queue:"][form];
        format!("{prefix}{name}").parse().expect("made of allowed characters")
    })
}

/// Values of which a test makes parts of keys.
#[derive(Debug)]
struct Samples {
    bits: (u128, u128),
    job: JobKey,
    queue: WorkQueue,
    instance: InstanceRef,
    old: LegacyQueue,
    is_of_all: bool,
}

key_samples! {
    Samples:
    ActorNonce = |s| Self { signer: format!("{:064x}", s.bits.0), nonce: Uid::from_bits(s.bits.1) },
    AsideQueue = |s| Self { queue: s.queue.clone(), owner: format!("{:064x}/{}", s.bits.0, s.bits.1) },
    ContextUid = |s| s.job.context,
    ControlScope = |s| {
        if s.is_of_all { Self::Type(s.instance.script_type) } else { Self::Instance(s.instance.clone()) }
    },
    InstanceRef = |s| s.instance.clone(),
    JobKey = |s| s.job,
    LegacyQueue = |s| s.old.clone(),
    CoordinatorRootKey = |s| Self::parse(&format!("{:064x}", s.bits.0)).expect("made of hex digits"),
    ScriptType = |s| s.instance.script_type,
    String = |s| format!("{}-{}", s.bits.0, s.bits.1),
    WorkQueue = |s| s.queue.clone(),
    u64 = |s| s.job.job.0.into(),
}

fn any_key() -> impl Strategy<Value = SupervisorKey> {
    let uids = (0_u128..3, 0_u128..3, 0_u32..3, 0_u32..3);
    let parts = (uids, any_queue(), any_instance(), any_old(), any::<bool>());
    (0..SupervisorKey::VARIANTS.len(), parts).prop_map(|(variant, parts)| {
        let ((a, b, job, attempt), queue, instance, old, is_of_all) = parts;
        let job = JobKey {
            context: ContextUid(Uid::from_bits(a)),
            flow: FlowUid(Uid::from_bits(b)),
            job: JobId(job),
            attempt: Attempt(attempt),
        };
        let samples = Samples { bits: (a, b), job, queue, instance, old, is_of_all };
        SupervisorKey::of_each(&samples).swap_remove(variant)
    })
}

proptest! {
    #[test]
    fn what_is_built_is_parsed(key in any_key()) {
        let text = key.to_string();
        prop_assert_eq!(SupervisorKey::parse(&text), Some(key));
    }

    #[test]
    fn two_keys_never_collide(a in any_key(), b in any_key()) {
        prop_assert_eq!(a.to_string() == b.to_string(), a == b);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "(hero:)?[ -~]{0,60}") {
        if let Some(key) = SupervisorKey::parse(&text) {
            prop_assert_eq!(key.to_string(), text);
        }
    }
}

#[test]
fn key_builders_match_the_key_table() {
    let ours = LegacyQueue::parse("hero:q:work:type:shell").expect("open to others");
    for queue in [ours, LegacyQueue::parse("queue:python").expect("an old queue")] {
        let key = legacy::legacy_claims(&queue);
        assert_eq!(SupervisorKey::parse(&key), Some(SupervisorKey::OldClaims(queue.clone())));
        assert_eq!(key, format!("{CLAIMS}{}", queue.worker()), "as scripts make it");
        assert_eq!(
            SupervisorKey::parse(&legacy::legacy_waiting(&queue)),
            Some(SupervisorKey::OldWaiting(queue))
        );
    }
    let at = InstanceRef::parse("shell:default:1").expect("an instance");
    assert_eq!(SupervisorKey::parse(&presence(&at)), Some(SupervisorKey::Presence(at.clone())));
    assert_eq!(SupervisorKey::parse(&claims(&at)), Some(SupervisorKey::Claims(at.clone())));
    assert_eq!(SupervisorKey::parse(&handed(&at)), Some(SupervisorKey::Handed(at)));
    assert!(LUA_NAMES.contains("local CLAIMS = 'hero:claims:'\n"), "{LUA_NAMES}");
}

#[test]
fn as_they_are_specified() {
    let gpu: Name = "gpu".parse().expect("a name");
    let at = InstanceRef { script_type: ScriptType::Python, group: gpu.clone(), number: 3 };
    assert_eq!(at.to_string(), "python:gpu:3");
    assert_eq!(presence(&at), "hero:meta:actor:inst:python:gpu:3");
    let queues: Vec<_> = at.queues(Isolation::Basic).iter().map(ToString::to_string).collect();
    assert_eq!(
        queues,
        [
            "hero:q:work:type:python:group:gpu:inst:3:prio:0",
            "hero:q:work:type:python:group:gpu:prio:0",
            "hero:q:work:type:python:prio:0",
            "hero:q:work:type:python:group:gpu:inst:3",
            "hero:q:work:type:python:group:gpu",
            "hero:q:work:type:python",
            "hero:q:work:type:python:group:gpu:inst:3:prio:2",
            "hero:q:work:type:python:group:gpu:prio:2",
            "hero:q:work:type:python:prio:2",
            "hero:q:work:type:python:group:gpu:inst:3:closed:prio:0",
            "hero:q:work:type:python:group:gpu:closed:prio:0",
            "hero:q:work:type:python:closed:prio:0",
            "hero:q:work:type:python:group:gpu:inst:3:closed",
            "hero:q:work:type:python:group:gpu:closed",
            "hero:q:work:type:python:closed",
            "hero:q:work:type:python:group:gpu:inst:3:closed:prio:2",
            "hero:q:work:type:python:group:gpu:closed:prio:2",
            "hero:q:work:type:python:closed:prio:2",
        ]
    );
    let confined: Vec<_> = at.queues(Isolation::Confined).iter().map(ToString::to_string).collect();
    assert_eq!(confined.len(), 27);
    assert_eq!(
        confined[17..19],
        [
            "hero:q:work:type:python:closed:prio:2",
            "hero:q:work:type:python:group:gpu:inst:3:iso:confined:prio:0"
        ]
    );
    assert!(at.queues(Isolation::Contained).iter().all(|queue| queue.is_for(&at)));
    let elsewhere = InstanceRef { number: 4, ..at.clone() };
    let fitting = at.queues(Isolation::Basic).into_iter().filter(|queue| queue.is_for(&elsewhere)).count();
    assert_eq!(fitting, 12, "all but its own");
    assert_eq!(ControlScope::Instance(at).to_string(), "hero:q:ctl:type:python:group:gpu:inst:3");
    let normal = WorkQueue::parse("hero:q:work:type:shell:prio:1");
    assert_eq!(normal, Some(WorkQueue::shared(ScriptType::Shell)));
    assert_eq!(WorkQueue::parse("hero:q:work:type:shell:prio:3"), None);
    assert_eq!(WorkQueue::parse("hero:q:work:type:shell:iso:basic"), None);
    assert_eq!(WorkQueue::parse("hero:q:work:type:cobol"), None);
    assert_eq!(WorkQueue::parse("hero:q:work:type:shell:closed:iso:confined"), None);
    let closed = WorkQueue::shared(ScriptType::Shell).closed();
    assert!(
        !closed.is_open()
            && closed
                .clone()
                .with_isolation(Isolation::Confined)
                .closed()
                .to_string()
                .ends_with(":iso:confined")
    );
}
