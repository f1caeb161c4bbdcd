use super::*;
use crate::nonce::ActorNonce;
use crate::old::OldQueue;
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

fn any_old() -> impl Strategy<Value = OldQueue> {
    (0_usize..4, "[a-zA-Z0-9_.@-]{1,12}").prop_map(|(form, name)| {
        let prefix = ["hero:job:actor_queue:", "hero:job:", "hero:work_queue:", "queue:"][form];
        format!("{prefix}{name}").parse().expect("made of allowed characters")
    })
}

/// Queues of others, and those of ours that they may work at.
fn any_shared() -> impl Strategy<Value = OldQueue> {
    let ours = any_queue().prop_filter_map("only ours know it", |queue| OldQueue::parse(&queue.to_string()));
    prop_oneof![any_old(), ours]
}

fn any_key() -> impl Strategy<Value = SupervisorKey> {
    use SupervisorKey as K;
    let uids = (0_u128..3, 0_u128..3, 0_u32..3, 0_u32..3);
    (0_u8..36, uids, any_queue(), any_instance(), any_old(), any_shared()).prop_map(
        |(kind, (a, b, job, attempt), queue, at, old, shared)| {
            let key = JobKey {
                context: ContextUid(Uid::from_bits(a)),
                flow: FlowUid(Uid::from_bits(b)),
                job: JobId(job),
                attempt: Attempt(attempt),
            };
            match kind {
                0 => K::Job(key),
                1 => K::Reply(key),
                2 => K::StopMark(key),
                3 => K::ContextBinding(key.context),
                4 => K::ContextJobs(key.context),
                5 => K::Claims(at),
                6 => K::Presence(at),
                7 => K::Work(queue),
                8 => K::Unclaimed(queue),
                9 => K::QueueStats(queue),
                10 => K::Control(ControlScope::Type(at.script_type)),
                11 => K::Control(ControlScope::Instance(at)),
                12 => K::Done,
                13 => K::Seq,
                14 => K::Queues,
                15 => K::Instances,
                16 => K::Old(old),
                17 => K::OldWaiting(old),
                18 => K::OldClaims(shared),
                19 => K::OldNumbered(job.into()),
                20 => K::OldQueues,
                21 => K::Nonce(ActorNonce { signer: format!("{a:064x}"), nonce: Uid::from_bits(b) }),
                22 => K::BoundContexts(format!("{a:064x}")),
                23 => K::Successors,
                24 => K::Request(format!("{a}-{b}")),
                25 => K::AsideOf(queue, format!("{a:064x}/{b}")),
                26 => K::Aside,
                27 => K::Callers,
                28 => K::Foreign,
                29 => K::Alone,
                30 => K::Turns(at.script_type),
                31 => K::Lines(at.script_type, key.context),
                32 => K::Line(key.context, queue),
                33 => K::Takers(at.script_type),
                34 => K::Handed(at),
                _ => K::Supervisor,
            }
        },
    )
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
