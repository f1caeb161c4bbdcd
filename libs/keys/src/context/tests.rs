//! Keys are read back as they are built.

use super::*;
use proptest::prelude::*;

fn any_context_key() -> impl Strategy<Value = ContextKey> {
    use ContextKey as K;
    let hash = any::<[u8; 4]>().prop_map(|seed| BlobHash::of(&seed));
    (0_u8..40, any::<[u32; 3]>(), hash, "[ -~]{0,40}").prop_map(|(kind, [a, b, c], hash, text)| match kind {
        0 => K::Context(ContextId(a)),
        1 => K::Runner(RunnerId(a)),
        2 => K::Runners,
        3 => K::Job(ActorId(a), JobId(b)),
        4 => K::Flow(FlowId(a)),
        5 => K::FlowNodes(FlowId(a)),
        6 => K::FlowSignals(FlowId(a)),
        7 => K::Flows,
        8 => K::FlowsActive,
        9 => K::Message(MessageKey { caller: ActorId(a), id: MessageId(b) }),
        10 => K::MsgOut,
        11 => K::MsgIn,
        12 => K::MsgOutCoordinator,
        13 => K::Inbox(ActorId(a)),
        14 => K::Seen(hash),
        15 => K::Blob(hash),
        16 => K::BlobChunk(hash, a),
        17 => K::BlobRefs(hash),
        18 => K::BlobIdle,
        19 => K::Log(FlowId(a), JobId(b), Attempt(c)),
        20 => K::Events,
        21 => K::Audit,
        22 => K::Due,
        23 => K::Request(ActorId(a), text),
        24 => K::FlowMessages(FlowId(a)),
        25 => K::BlobPart(hash, a),
        26 => K::FlowInputs(FlowId(a)),
        27 => K::FlowWaiters(FlowId(a)),
        28 => K::Drops,
        29 => K::Letters,
        30 => K::DeadLetters,
        31 => K::LettersDone,
        32 => K::InboxBytes,
        33 => K::RunnersDeleted,
        34 => K::Jobs,
        35 => K::EventMarks,
        37 => K::FlowsUnmeasured,
        38 => K::FlowsEnded,
        36 => K::FlowsOf(FlowStatus::ALL[a as usize % FlowStatus::ALL.len()]),
        _ => K::Ids,
    })
}

fn any_layout() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::Database), Just(Layout::HashTag)]
}

proptest! {
    #[test]
    fn what_is_built_is_parsed(layout in any_layout(), context: u32, key in any_context_key()) {
        let keys = ContextKeys::new(layout, ContextId(context));
        prop_assert_eq!(keys.parse(&keys.key(&key)), Some(key));
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

    #[test]
    fn global_keys_round_trip(layout in any_layout(), id: u32, text in "[ -~]{0,40}") {
        let keys = GlobalKeys::new(layout);
        for key in [
            GlobalKey::Actor(ActorId(id)), GlobalKey::Actors, GlobalKey::ActorKeys, GlobalKey::Contexts,
            GlobalKey::Coordinator, GlobalKey::Replicas, GlobalKey::Request(ActorId(id), text.clone()), GlobalKey::Token(ActorId(id), text), GlobalKey::Events, GlobalKey::Audit,
            GlobalKey::Ids,
        ] {
            prop_assert_eq!(keys.parse(&keys.key(&key)), Some(key));
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
