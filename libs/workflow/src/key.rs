//! Keys of all rows that a store keeps: `<table>:<part>:…` within a lane.
//!
//! Text from outside is encoded in a key ([`part`]), so that it cannot contain a separator, and numbers have twenty digits,
//! so that they sort as texts. No other module writes a key.

use std::fmt;
use std::ops::Range;

use model::{CommandId, CorrelationId, SagaName, TenantId, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::lane::WorkflowLane;

/// An encoded part that would be longer is replaced by a hash; the value then has the text.
const PART_BYTES_MAX: usize = 600;
/// Prefix of such a part. No encoded text has it: a `%` is followed by a hexadecimal digit, or by nothing.
const HASHED: &str = "%h";

/// A key within a lane.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneRowKey(String);

/// Decoded part of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowKeyPart {
    /// The text that was encoded.
    Text(String),
    /// SHA-256 of the text, which was too long.
    Hash([u8; 32]),
}

/// Tables, in four groups: those of instances, those of calls, those of any lane, and those beside the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreTable {
    /// Instances, and tombstones of those that have ended.
    Saga,
    /// Instances by their status and step, for lists.
    By,
    /// Inputs that instances were given, with what followed from each.
    Journal,
    /// Inputs that count once.
    Dedupe,
    /// Events that came before the step that takes them.
    Kept,
    /// Inputs that nothing can be done with.
    Dead,
    /// Inputs that wait behind a dead letter or a pause.
    Parked,
    /// Timers by when they are due.
    Due,
    /// Calls by command.
    Effect,
    /// Calls by when something is due of them.
    EffectDue,
    /// Calls by their state and by who ordered them, for lists.
    EffectBy,
    /// Calls that their sagas no longer want.
    Unwanted,
    /// How far a source was read.
    Checkpoint,
    /// Which occurrence of its schedule a saga waits for.
    Schedule,
    /// Why starts of the lane wait.
    Starved,
    /// Work that is to be sent, in the order of the commits.
    Outbox,
    /// Fence of a lane: the epoch of its owner.
    Fence,
    /// Name of the replica that owns a lane.
    Owner,
    /// Answers to requests that may be repeated.
    Request,
    /// Definitions by their hash.
    Definition,
    /// Definitions in force: those of the operator as one row, and those of each tenant.
    Active,
    /// Decisions of operators about lanes.
    Lane,
    /// Decisions of operators about tenants.
    Tenant,
}

impl StoreTable {
    /// Returns the name in keys.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Saga => "saga",
            Self::By => "by",
            Self::Journal => "journal",
            Self::Dedupe => "dedupe",
            Self::Kept => "kept",
            Self::Dead => "dead",
            Self::Parked => "parked",
            Self::Due => "due",
            Self::Effect => "effect",
            Self::EffectDue => "effect_due",
            Self::EffectBy => "effect_by",
            Self::Unwanted => "unwanted",
            Self::Checkpoint => "checkpoint",
            Self::Schedule => "schedule",
            Self::Starved => "starved",
            Self::Outbox => "outbox",
            Self::Fence => "fence",
            Self::Owner => "owner",
            Self::Request => "request",
            Self::Definition => "definition",
            Self::Active => "active",
            Self::Lane => "lane",
            Self::Tenant => "tenant",
        }
    }

    /// All keys of it.
    #[must_use]
    pub fn range(self) -> Range<LaneRowKey> {
        self.with(|_| ()).below()
    }

    fn with(self, parts: impl FnOnce(&mut RowKeyWriter)) -> LaneRowKey {
        let mut writer = RowKeyWriter(self.as_str().to_owned());
        parts(&mut writer);
        LaneRowKey(writer.0)
    }
}

impl LaneRowKey {
    /// The text, without the lane.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads a key that a store returned. Its form is not checked.
    #[must_use]
    pub fn of_store(text: String) -> Self {
        Self(text)
    }

    /// The keys that have this one's parts and more behind them.
    #[must_use]
    pub fn below(&self) -> Range<Self> {
        // `;` comes after `:`.
        Self(format!("{}:", self.0))..Self(format!("{};", self.0))
    }

    /// The first key behind this one.
    #[must_use]
    pub fn behind(&self) -> Self {
        Self(format!("{}\0", self.0))
    }

    /// The parts behind the table; nothing where one of them is none.
    #[must_use]
    pub fn parts(&self) -> Option<Vec<RowKeyPart>> {
        self.0.split(':').skip(1).map(decode).collect()
    }

    /// An instance.
    #[must_use]
    pub fn saga(correlation: &CorrelationId) -> Self {
        StoreTable::Saga.with(|key| key.text(correlation.as_str()))
    }

    /// An instance, in a list of those with this status at this step.
    #[must_use]
    pub fn by(status: &str, step: &str, correlation: &CorrelationId) -> Self {
        StoreTable::By.with(|key| {
            key.text(status);
            key.text(step);
            key.text(correlation.as_str());
        })
    }

    /// All instances in the list of those with this status.
    #[must_use]
    pub fn by_status(status: &str) -> Range<Self> {
        StoreTable::By.with(|key| key.text(status)).below()
    }

    /// All instances in the list of those with this status at this step.
    #[must_use]
    pub fn by_step(status: &str, step: &str) -> Range<Self> {
        let at = |key: &mut RowKeyWriter| {
            key.text(status);
            key.text(step);
        };
        StoreTable::By.with(at).below()
    }

    /// Key of the journal row of this revision.
    #[must_use]
    pub fn journal(correlation: &CorrelationId, revision: u64) -> Self {
        Self::numbered(StoreTable::Journal, correlation, revision)
    }

    /// All rows of the journal of an instance.
    #[must_use]
    pub fn journal_of(correlation: &CorrelationId) -> Range<Self> {
        Self::of(StoreTable::Journal, correlation)
    }

    /// All inputs of an instance that were kept back.
    #[must_use]
    pub fn parked_of(correlation: &CorrelationId) -> Range<Self> {
        Self::of(StoreTable::Parked, correlation)
    }

    /// All events of an instance that wait for their step.
    #[must_use]
    pub fn kept_of(correlation: &CorrelationId) -> Range<Self> {
        Self::of(StoreTable::Kept, correlation)
    }

    /// All dead letters of a correlation.
    #[must_use]
    pub fn dead_of(correlation: &CorrelationId) -> Range<Self> {
        Self::of(StoreTable::Dead, correlation)
    }

    fn of(table: StoreTable, correlation: &CorrelationId) -> Range<Self> {
        table.with(|key| key.text(correlation.as_str())).below()
    }

    /// An input that counts once: see [`crate::InputId::digest`].
    #[must_use]
    pub fn dedupe(correlation: &CorrelationId, input: &[u8; 32]) -> Self {
        StoreTable::Dedupe.with(|key| {
            key.text(correlation.as_str());
            key.text(&hex::encode(input));
        })
    }

    /// An event that may come before its step.
    #[must_use]
    pub fn kept(correlation: &CorrelationId, number: u64) -> Self {
        Self::numbered(StoreTable::Kept, correlation, number)
    }

    /// A dead letter; of one without a correlation it is `-`.
    #[must_use]
    pub fn dead(correlation: &CorrelationId, number: u64) -> Self {
        Self::numbered(StoreTable::Dead, correlation, number)
    }

    /// Key of an input that waits behind a dead letter or a pause.
    #[must_use]
    pub fn parked(correlation: &CorrelationId, number: u64) -> Self {
        Self::numbered(StoreTable::Parked, correlation, number)
    }

    /// A timer, by when it is due.
    #[must_use]
    pub fn due(due: Timestamp, correlation: &CorrelationId, name: &str) -> Self {
        StoreTable::Due.with(|key| {
            key.number(due.as_millis());
            key.text(correlation.as_str());
            key.text(name);
        })
    }

    /// The first key of a timer that is due at this moment or later.
    #[must_use]
    pub fn due_from(due: Timestamp) -> Self {
        StoreTable::Due.with(|key| key.number(due.as_millis()))
    }

    /// A call.
    #[must_use]
    pub fn effect(command: CommandId) -> Self {
        StoreTable::Effect.with(|key| key.text(&command.to_string()))
    }

    /// A call, by when something is due of it.
    #[must_use]
    pub fn effect_due(due: Timestamp, command: CommandId) -> Self {
        StoreTable::EffectDue.with(|key| {
            key.number(due.as_millis());
            key.text(&command.to_string());
        })
    }

    /// A call, in a list of those in this state, by the instance that ordered it.
    #[must_use]
    pub fn effect_by(state: &str, saga: &SagaName, correlation: &CorrelationId, command: CommandId) -> Self {
        StoreTable::EffectBy.with(|key| {
            key.text(state);
            key.text(saga.as_str());
            key.text(correlation.as_str());
            key.text(&command.to_string());
        })
    }

    /// All calls in the list of those in this state: of every saga, of one, or of one instance of it.
    #[must_use]
    pub fn effects_by(
        state: &str,
        saga: Option<&SagaName>,
        correlation: Option<&CorrelationId>,
    ) -> Range<Self> {
        let by = |key: &mut RowKeyWriter| {
            key.text(state);
            if let Some(saga) = saga {
                key.text(saga.as_str());
                if let Some(correlation) = correlation {
                    key.text(correlation.as_str());
                }
            }
        };
        StoreTable::EffectBy.with(by).below()
    }

    /// A call that its saga no longer wants, until its own row records that.
    #[must_use]
    pub fn unwanted(command: CommandId) -> Self {
        StoreTable::Unwanted.with(|key| key.text(&command.to_string()))
    }

    /// How far a source was read.
    #[must_use]
    pub fn checkpoint(source: &str) -> Self {
        StoreTable::Checkpoint.with(|key| key.text(source))
    }

    /// Which occurrence of its schedule the saga waits for.
    #[must_use]
    pub fn schedule() -> Self {
        StoreTable::Schedule.with(|_| ())
    }

    /// Why starts of the lane wait.
    #[must_use]
    pub fn starved() -> Self {
        StoreTable::Starved.with(|_| ())
    }

    /// Work that is to be sent.
    #[must_use]
    pub fn outbox(sequence: u64) -> Self {
        StoreTable::Outbox.with(|key| key.number(sequence))
    }

    /// Key of the lane's fence: the epoch of its owner.
    #[must_use]
    pub fn fence() -> Self {
        StoreTable::Fence.with(|_| ())
    }

    /// The name of the replica that owns the lane, as long as it has not given it up.
    #[must_use]
    pub fn owner() -> Self {
        StoreTable::Owner.with(|_| ())
    }

    /// The answer to a request that may be repeated.
    #[must_use]
    pub fn request(id: &str) -> Self {
        StoreTable::Request.with(|key| key.text(id))
    }

    /// A definition, by its hash. Outside the lanes, like the following ones.
    #[must_use]
    pub fn definition(hash: &[u8; 32]) -> Self {
        StoreTable::Definition.with(|key| key.text(&hex::encode(hash)))
    }

    /// Key of the operator's definitions that are in force.
    #[must_use]
    pub fn active() -> Self {
        StoreTable::Active.with(|_| ())
    }

    /// Key of a tenant's own definitions that are in force.
    #[must_use]
    pub fn applied(tenant: &TenantId) -> Self {
        StoreTable::Active.with(|key| key.text(tenant.as_str()))
    }

    /// Tenants, as one row.
    #[must_use]
    pub fn tenants() -> Self {
        StoreTable::Tenant.with(|_| ())
    }

    /// Key of the operator's decision about a lane.
    #[must_use]
    pub fn lane(lane: &WorkflowLane) -> Self {
        StoreTable::Lane.with(|key| key.text(&lane.to_string()))
    }

    /// Key of the operator's decision about a tenant.
    #[must_use]
    pub fn tenant(tenant: &TenantId) -> Self {
        StoreTable::Tenant.with(|key| key.text(tenant.as_str()))
    }

    fn numbered(table: StoreTable, correlation: &CorrelationId, number: u64) -> Self {
        table.with(|key| {
            key.text(correlation.as_str());
            key.number(number);
        })
    }
}

impl fmt::Display for LaneRowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

struct RowKeyWriter(String);

impl RowKeyWriter {
    fn text(&mut self, text: &str) {
        self.0.push(':');
        self.0.push_str(&part(text));
    }

    fn number(&mut self, number: u64) {
        self.0.push_str(&format!(":{number:020}"));
    }
}

/// Encodes a text for a key: `[A-Za-z0-9_.-]` stay as they are, every other byte becomes `%XX`, an empty text `%`. A text
/// whose encoded form would exceed 600 bytes becomes `%h` and its SHA-256.
#[must_use]
pub fn part(text: &str) -> String {
    if text.is_empty() {
        return "%".to_owned();
    }
    let mut part = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' => part.push(char::from(byte)),
            other => part.push_str(&format!("%{other:02X}")),
        }
    }
    if part.len() > PART_BYTES_MAX {
        return format!("{HASHED}{}", hex::encode(Sha256::digest(text)));
    }
    part
}

/// Reverses [`part`]; returns `None` for a text that it never produces.
fn decode(encoded: &str) -> Option<RowKeyPart> {
    if let Some(hash) = encoded.strip_prefix(HASHED) {
        let mut bytes = [0; 32];
        hex::decode_to_slice(hash, &mut bytes).ok()?;
        return (hex::encode(bytes) == hash).then_some(RowKeyPart::Hash(bytes));
    }
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes().iter();
    while let Some(byte) = rest.next().filter(|_| encoded != "%") {
        match byte {
            b'%' => {
                let pair = [*rest.next()?, *rest.next()?];
                bytes.extend(hex::decode(pair).ok()?);
            }
            other => bytes.push(*other),
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    // Only the canonical form is accepted, so no two keys mean the same.
    (part(&text) == encoded).then_some(RowKeyPart::Text(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn correlation(text: &str) -> CorrelationId {
        text.parse().expect("a correlation")
    }

    #[test]
    fn keys_are_for_ever() {
        let (c, id) = (correlation("order-1"), CommandId::from_bits(7));
        let time = Timestamp::from_millis(1_700_000_000_000);
        for (key, text) in [
            (LaneRowKey::saga(&c), "saga:order-1"),
            (LaneRowKey::by("running", "", &c), "by:running:%:order-1"),
            (LaneRowKey::journal(&c, 3), "journal:order-1:00000000000000000003"),
            (LaneRowKey::dedupe(&c, &[1; 32]), &*format!("dedupe:order-1:{}", "01".repeat(32))),
            (LaneRowKey::kept(&c, 0), "kept:order-1:00000000000000000000"),
            (LaneRowKey::dead(&correlation("-"), 9), "dead:-:00000000000000000009"),
            (LaneRowKey::parked(&c, u64::MAX), "parked:order-1:18446744073709551615"),
            (LaneRowKey::due(time, &c, "pay-by"), "due:00000001700000000000:order-1:pay-by"),
            (LaneRowKey::effect(id), "effect:00000000-0000-0000-0000-000000000007"),
            (
                LaneRowKey::effect_due(time, id),
                "effect_due:00000001700000000000:00000000-0000-0000-0000-000000000007",
            ),
            (
                LaneRowKey::effect_by("calling", &"order".parse().expect("a name"), &c, id),
                "effect_by:calling:order:order-1:00000000-0000-0000-0000-000000000007",
            ),
            (LaneRowKey::checkpoint("aggregate.Order.*"), "checkpoint:aggregate.Order.%2A"),
            (LaneRowKey::outbox(5), "outbox:00000000000000000005"),
            (LaneRowKey::fence(), "fence"),
            (LaneRowKey::owner(), "owner"),
            (LaneRowKey::request("a b"), "request:a%20b"),
            (LaneRowKey::active(), "active"),
            (
                LaneRowKey::lane(&WorkflowLane::Effect {
                    tenant: TenantId::single(),
                    effect: "pay".parse().expect("a name"),
                }),
                "lane:e%3A%25%3Apay%3A0",
            ),
            (LaneRowKey::tenant(&TenantId::single()), "tenant:%"),
        ] {
            assert_eq!(key.as_str(), text);
        }
        assert_eq!(LaneRowKey::saga(&correlation("a:b{}%\0é")).as_str(), "saga:a%3Ab%7B%7D%25%00%C3%A9");
        let long = LaneRowKey::saga(&correlation(&":".repeat(201)));
        assert!(long.as_str().starts_with("saga:%h") && long.as_str().len() == 71, "{long}");
        assert!(matches!(long.parts().as_deref(), Some([RowKeyPart::Hash(_)])));
    }

    #[test]
    fn a_range_has_what_is_below_and_nothing_else() {
        let (a, b) = (correlation("a"), correlation("a-b"));
        let range = LaneRowKey::saga(&a).below();
        assert!(!range.contains(&LaneRowKey::saga(&a)) && !range.contains(&LaneRowKey::saga(&b)));
        let journal = StoreTable::Journal.range();
        assert!(
            journal.contains(&LaneRowKey::journal(&b, 0))
                && journal.contains(&LaneRowKey::journal(&a, u64::MAX))
        );
        assert!(
            !StoreTable::Effect
                .range()
                .contains(&LaneRowKey::effect_due(Timestamp::default(), CommandId::from_bits(1)))
        );
        assert!(!StoreTable::Due.range().contains(&LaneRowKey::dedupe(&a, &[0; 32])));
        let order: SagaName = "order".parse().expect("a name");
        let called = LaneRowKey::effect_by("calling", &order, &a, CommandId::from_bits(1));
        for range in [
            StoreTable::EffectBy.range(),
            LaneRowKey::effects_by("calling", None, None),
            LaneRowKey::effects_by("calling", Some(&order), None),
            LaneRowKey::effects_by("calling", Some(&order), Some(&a)),
        ] {
            assert!(range.contains(&called), "{range:?}");
        }
        assert!(!LaneRowKey::effects_by("calling", Some(&order), Some(&b)).contains(&called));
        assert!(!LaneRowKey::effects_by("failed", None, None).contains(&called));
        assert!(
            !StoreTable::Effect.range().contains(&called) && !StoreTable::EffectDue.range().contains(&called)
        );
        let moment = Timestamp::from_millis(7);
        assert!(LaneRowKey::due(Timestamp::from_millis(6), &a, "z") < LaneRowKey::due_from(moment));
        assert!(LaneRowKey::due_from(moment) < LaneRowKey::due(moment, &a, "a"));
        let running = LaneRowKey::by("running", "reserve", &a);
        assert!(
            LaneRowKey::by_status("running").contains(&running)
                && !LaneRowKey::by_status("stuck").contains(&running)
        );
        assert!(LaneRowKey::by_step("running", "reserve").contains(&running));
        assert!(!LaneRowKey::by_step("running", "reserve-b").contains(&running));
        // The journal of one alone.
        let of_a = LaneRowKey::of_store(format!("journal:{}", part("a"))).below();
        assert!(of_a.contains(&LaneRowKey::journal(&a, 7)) && !of_a.contains(&LaneRowKey::journal(&b, 7)));
    }

    #[test]
    fn what_is_no_part_is_not_read() {
        for wrong in ["a b", "%4", "%zz", "%61", "%2a", "", "%%", "%hxy", "%C3", "é"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_key_part_decodes_to_its_text(text in ".{0,100}") {
            let encoded = part(&text);
            let bounds = [':', '{', '}'];
            prop_assert!(!encoded.contains(bounds) && encoded.len() <= PART_BYTES_MAX);
            if !encoded.starts_with(HASHED) {
                prop_assert_eq!(decode(&encoded), Some(RowKeyPart::Text(text)));
            }
        }

        #[test]
        fn no_two_texts_share_a_part(one in "[a%:h0-9]{0,6}", other in "[a%:h0-9]{0,6}") {
            prop_assert_eq!(part(&one) == part(&other), one == other);
        }

        #[test]
        fn what_is_due_first_comes_first(one: u64, other: u64, names in "[a-c]{2}") {
            let key = |millis, name: &str| LaneRowKey::due(Timestamp::from_millis(millis), &correlation(name), "t");
            let (first, second) = (key(one, &names[..1]), key(other, &names[1..]));
            if one != other {
                prop_assert_eq!(first < second, one < other);
            }
        }
    }
}
