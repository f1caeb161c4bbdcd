//! Keys are read back as they are built.

use super::*;
use crate::samples::key_samples;
use model::{Attempt, BlobHash, FlowId, FlowStatus, JobId, RunnerId};
use proptest::prelude::*;

/// Values of which a test makes parts of keys.
#[derive(Debug)]
struct CoordinatorSamples {
    numbers: [u32; 3],
    hash: BlobHash,
    status: FlowStatus,
    text: String,
}

key_samples! {
    CoordinatorSamples:
    ActorId = |s| Self(s.numbers[0]),
    Attempt = |s| Self(s.numbers[2]),
    BlobHash = |s| s.hash,
    ContextId = |s| Self(s.numbers[0]),
    FlowId = |s| Self(s.numbers[0]),
    FlowStatus = |s| s.status,
    JobId = |s| Self(s.numbers[1]),
    MessageKey = |s| Self { caller: ActorId(s.numbers[0]), id: MessageId(s.numbers[1]) },
    RunnerId = |s| Self(s.numbers[0]),
    String = |s| s.text.clone(),
    u32 = |s| s.numbers[1],
}

fn any_samples() -> impl Strategy<Value = CoordinatorSamples> {
    let hash = any::<[u8; 4]>().prop_map(|seed| BlobHash::of(&seed));
    let status = proptest::sample::select(&FlowStatus::ALL[..]);
    (any::<[u32; 3]>(), hash, status, "[ -~]{0,40}")
        .prop_map(|(numbers, hash, status, text)| CoordinatorSamples { numbers, hash, status, text })
}

fn any_context_key() -> impl Strategy<Value = ContextKey> {
    (any_samples(), any::<proptest::sample::Index>())
        .prop_map(|(samples, at)| at.get(&ContextKey::of_each(&samples)).clone())
}

fn any_layout() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::Database), Just(Layout::HashTag)]
}

proptest! {
    #[test]
    fn what_is_built_is_parsed(layout in any_layout(), context: u32, samples in any_samples()) {
        let keys = ContextKeys::new(layout, ContextId(context));
        for key in ContextKey::of_each(&samples) {
            prop_assert_eq!(keys.parse(&keys.key(&key)), Some(key));
        }
        let keys = GlobalKeys::new(layout);
        for key in GlobalKey::of_each(&samples) {
            prop_assert_eq!(keys.parse(&keys.key(&key)), Some(key));
        }
    }

    #[test]
    fn two_keys_never_collide(layout in any_layout(), a in any_context_key(), b in any_context_key()) {
        let keys = ContextKeys::new(layout, ContextId(1));
        prop_assert_eq!(keys.key(&a) == keys.key(&b), a == b);
    }

    #[test]
    fn contexts_never_collide(x: u32, y: u32, key in any_context_key()) {
        let (x, y) = (ContextId(x), ContextId(y));
        let of = |id| ContextKeys::new(Layout::HashTag, id).key(&key);
        // The context's own number is part of one of its keys, so that one is built for each.
        prop_assert_eq!(of(x) == of(y), x == y);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text: String) {
        for layout in [Layout::Database, Layout::HashTag] {
            let keys = ContextKeys::new(layout, ContextId(7));
            if let Some(key) = keys.parse(&text) {
                prop_assert_eq!(keys.key(&key), text.clone());
            }
            let global = GlobalKeys::new(layout);
            if let Some(key) = global.parse(&text) {
                prop_assert_eq!(global.key(&key), text.clone());
            }
        }
    }
}

#[test]
fn as_they_are_specified() {
    let plain = ContextKeys::new(Layout::Database, ContextId(7));
    let tagged = ContextKeys::new(Layout::HashTag, ContextId(7));
    assert_eq!(plain.message(ActorId(12), MessageId(101)), "message:12:101");
    assert_eq!(tagged.message(ActorId(12), MessageId(101)), "{7}:message:12:101");
    let key = ContextKey::Message(MessageKey { caller: ActorId(12), id: MessageId(101) });
    assert_eq!(plain.parse("message:12:101"), Some(key.clone()));
    assert_eq!(tagged.parse("{7}:message:12:101"), Some(key));
    assert_eq!(tagged.parse("message:12:101"), None);
    assert_eq!(tagged.parse("{8}:message:12:101"), None);
    assert_eq!(plain.context(), "context:7");
    assert_eq!(tagged.flow_nodes(FlowId(3)), "{7}:flow:3:nodes");
    assert_eq!(GlobalKeys::new(Layout::HashTag).actor(ActorId(1)), "{0}:actor:1");
    assert_eq!((plain.database(), tagged.database()), (7, 0));
    for bad in ["message:12", "message:012:1", "message:12:1:1", "flow:1:x", "flow:", "job:1:-1", "x"] {
        assert_eq!(plain.parse(bad), None, "{bad}");
    }
}
