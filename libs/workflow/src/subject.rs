//! The names of everything that a broker carries: subjects, and the consumers that read them.
//!
//! Text from outside that is not a safe token is hashed in a subject; a header then has the text. The subject of an
//! incoming message is parsed again ([`MessageSubject::read`]), since a consumer's filter is only one barrier of several.

use std::fmt;

use model::{CommandId, CorrelationId, EffectName, SagaName, TenantId};
use sha2::{Digest as _, Sha256};

use crate::lane::WorkflowLane;

/// A longer token is replaced by a hash.
const TOKEN_BYTES_MAX: usize = 128;
/// Prefix of such a token. No safe token has a `%`.
const HASHED: &str = "%h";

/// A text as one token of a subject: `[A-Za-z0-9_-]` as they are, in at most 128 bytes; anything else as `%h` and its SHA-256.
#[must_use]
pub fn token(text: &str) -> String {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !text.is_empty() && text.len() <= TOKEN_BYTES_MAX && text.bytes().all(is_safe) {
        return text.to_owned();
    }
    format!("{HASHED}{}", hex::encode(Sha256::digest(text)))
}

/// Subject of a message, without the tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageSubject {
    /// An event of an aggregate: its type and its id, as tokens.
    Aggregate {
        /// The type.
        kind: String,
        /// The id.
        id: String,
    },
    /// A command for an effect.
    Effect {
        /// Which.
        effect: EffectName,
        /// The command.
        command: CommandId,
    },
    /// A message for an instance: a request, or the end of a child.
    Workflow {
        /// Saga of the instance.
        saga: SagaName,
        /// Correlation of the instance, as a token.
        correlation: String,
    },
    /// The result of a command.
    EffectResult {
        /// Effect that the command was for.
        effect: EffectName,
        /// The command.
        command: CommandId,
    },
    /// A fact about an instance.
    WorkflowEvent {
        /// Saga of the instance.
        saga: SagaName,
        /// Correlation of the instance, as a token.
        correlation: String,
    },
}

impl MessageSubject {
    /// Something for an instance.
    #[must_use]
    pub fn workflow(saga: &SagaName, correlation: &CorrelationId) -> Self {
        Self::Workflow { saga: saga.clone(), correlation: token(correlation.as_str()) }
    }

    /// Makes the subject of facts about an instance.
    #[must_use]
    pub fn workflow_event(saga: &SagaName, correlation: &CorrelationId) -> Self {
        Self::WorkflowEvent { saga: saga.clone(), correlation: token(correlation.as_str()) }
    }

    /// Filter of everything that became of instances of a tenant.
    #[must_use]
    pub fn workflow_events_of(tenant: &TenantId) -> String {
        format!("{}workflow_event.*.*", start(tenant))
    }

    /// The subject for this tenant: `tenant.<t>.effect.<effect>.<command>`, without its first two tokens where there are no
    /// tenants.
    #[must_use]
    pub fn of(&self, tenant: &TenantId) -> String {
        let start = start(tenant);
        match self {
            Self::Aggregate { kind, id } => format!("{start}aggregate.{kind}.{id}"),
            Self::Effect { effect, command } => format!("{start}effect.{effect}.{command}"),
            Self::Workflow { saga, correlation } => format!("{start}workflow.{saga}.{correlation}"),
            Self::EffectResult { effect, command } => format!("{start}effect_result.{effect}.{command}"),
            Self::WorkflowEvent { saga, correlation } => {
                format!("{start}workflow_event.{saga}.{correlation}")
            }
        }
    }

    /// Reads the subject of an incoming message: its tenant and target. `None` for a subject that is not ours; without
    /// tenants, also for one that names a tenant.
    #[must_use]
    pub fn read(subject: &str, has_tenants: bool) -> Option<(TenantId, Self)> {
        let mut tokens = subject.split('.');
        let tenant = if has_tenants {
            tokens.next().filter(|first| *first == "tenant")?;
            tokens.next()?.parse().ok()?
        } else {
            TenantId::single()
        };
        let (kind, first, second) = (tokens.next()?, tokens.next()?, tokens.next()?);
        if tokens.next().is_some() || first.is_empty() || second.is_empty() {
            return None;
        }
        let owned = |text: &str| text.to_owned();
        let subject = match kind {
            "aggregate" => Self::Aggregate { kind: owned(first), id: owned(second) },
            "effect" => Self::Effect { effect: first.parse().ok()?, command: second.parse().ok()? },
            "workflow" => Self::Workflow { saga: first.parse().ok()?, correlation: owned(second) },
            "effect_result" => {
                Self::EffectResult { effect: first.parse().ok()?, command: second.parse().ok()? }
            }
            "workflow_event" => Self::WorkflowEvent { saga: first.parse().ok()?, correlation: owned(second) },
            _ => return None,
        };
        Some((tenant, subject))
    }
}

fn start(tenant: &TenantId) -> String {
    if tenant.is_single() { String::new() } else { format!("tenant.{tenant}.") }
}

/// Source that one consumer reads. Some servers accept several filters for one consumer and ignore them, so each consumer
/// has one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConsumerSource {
    /// Events of aggregates of this type, a safe token.
    Aggregate(String),
    /// Commands for an effect.
    Commands(EffectName),
    /// Results of an effect.
    Results(EffectName),
    /// Requests to instances of a saga.
    Verbs(SagaName),
}

impl ConsumerSource {
    /// The only filter of a consumer of it.
    #[must_use]
    pub fn filter(&self, tenant: &TenantId) -> String {
        let start = start(tenant);
        match self {
            Self::Aggregate(kind) => format!("{start}aggregate.{kind}.*"),
            Self::Commands(effect) => format!("{start}effect.{effect}.*"),
            Self::Results(effect) => format!("{start}effect_result.{effect}.*"),
            Self::Verbs(saga) => format!("{start}workflow.{saga}.*"),
        }
    }

    /// The name of a lane's consumer of it: `sg_<saga>_<shard>_<kind><8 hex of the filter>_<tenant>`, of effects
    /// `ef_<effect>_<tenant>`. Names of sagas and effects have no `_`, so that no two lanes share one.
    #[must_use]
    pub fn consumer(&self, lane: &WorkflowLane) -> String {
        let tenant = lane.tenant();
        match lane {
            WorkflowLane::Effect { effect, .. } => format!("ef_{effect}_{tenant}"),
            WorkflowLane::Saga { saga, shard, .. } => {
                let filter = hex::encode(Sha256::digest(self.filter(tenant)));
                let filter = filter.get(..8).unwrap_or_default();
                format!("sg_{saga}_{shard}_{}{filter}_{tenant}", self.kind())
            }
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Aggregate(_) => "a",
            Self::Commands(_) => "c",
            Self::Results(_) => "r",
            Self::Verbs(_) => "v",
        }
    }
}

impl fmt::Display for ConsumerSource {
    /// Writes the name in checkpoints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aggregate(kind) => write!(f, "aggregate.{kind}"),
            Self::Commands(effect) => write!(f, "commands.{effect}"),
            Self::Results(effect) => write!(f, "results.{effect}"),
            Self::Verbs(saga) => write!(f, "verbs.{saga}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tenant(text: &str) -> TenantId {
        text.parse().expect("a tenant")
    }

    fn saga() -> SagaName {
        "order".parse().expect("a name")
    }

    #[test]
    fn subjects_are_read_as_they_were_written() {
        let (effect, command): (EffectName, _) = ("pay".parse().expect("a name"), CommandId::from_bits(7));
        let correlation = "a.b*".parse().expect("a correlation");
        for (subject, written) in [
            (
                MessageSubject::Aggregate { kind: "Order".to_owned(), id: "1".to_owned() },
                "aggregate.Order.1".to_owned(),
            ),
            (
                MessageSubject::Effect { effect: effect.clone(), command },
                "effect.pay.00000000-0000-0000-0000-000000000007".to_owned(),
            ),
            (
                MessageSubject::EffectResult { effect, command },
                "effect_result.pay.00000000-0000-0000-0000-000000000007".to_owned(),
            ),
            (
                MessageSubject::workflow(&saga(), &correlation),
                format!("workflow.order.%h{}", hex::encode(Sha256::digest("a.b*"))),
            ),
            (
                MessageSubject::workflow_event(&saga(), &"c-1".parse().expect("a correlation")),
                "workflow_event.order.c-1".to_owned(),
            ),
        ] {
            let full = subject.of(&tenant("acme"));
            assert_eq!(full, format!("tenant.acme.{written}"));
            assert_eq!(MessageSubject::read(&full, true), Some((tenant("acme"), subject.clone())));
            assert_eq!(MessageSubject::read(&full, false), None);
            assert_eq!(subject.of(&TenantId::single()), written);
            assert_eq!(MessageSubject::read(&written, false), Some((TenantId::single(), subject)));
            assert_eq!(MessageSubject::read(&written, true), None);
        }
    }

    #[test]
    fn what_is_none_of_ours_is_not_read() {
        for wrong in [
            "",
            "tenant.a",
            "tenant.a.effect.pay",
            "tenant.a.effect.pay.7",
            "tenant.a.effect.pay.00000000-0000-0000-0000-000000000007.x",
            "tenant..aggregate.Order.1",
            "tenant.a.aggregate..1",
            "tenant.a*.aggregate.Order.1",
            "tenant.a.workflow.o_r.1",
            "tenant.a.other.x.1",
            "tenants.a.aggregate.Order.1",
        ] {
            assert_eq!(MessageSubject::read(wrong, true), None, "{wrong}");
        }
    }

    #[test]
    fn consumers_are_for_ever() {
        let lane = WorkflowLane::Saga { tenant: tenant("acme"), saga: saga(), shard: 2 };
        let results = ConsumerSource::Results("pay".parse().expect("a name"));
        for (source, filter, consumer) in [
            (
                ConsumerSource::Aggregate("Order".to_owned()),
                "tenant.acme.aggregate.Order.*",
                "sg_order_2_a250518df_acme",
            ),
            (results, "tenant.acme.effect_result.pay.*", "sg_order_2_r45761f69_acme"),
            (ConsumerSource::Verbs(saga()), "tenant.acme.workflow.order.*", "sg_order_2_vfdb26a5a_acme"),
        ] {
            assert_eq!(
                (source.filter(lane.tenant()).as_str(), source.consumer(&lane).as_str()),
                (filter, consumer)
            );
        }
        let lane =
            WorkflowLane::Effect { tenant: TenantId::single(), effect: "pay".parse().expect("a name") };
        let commands = ConsumerSource::Commands("pay".parse().expect("a name"));
        assert_eq!(commands.filter(lane.tenant()), "effect.pay.*");
        assert_eq!(commands.consumer(&lane), "ef_pay_");
    }

    proptest! {
        #[test]
        fn a_token_is_one_token(one in ".{0,8}", other in ".{0,8}") {
            let token_of = token(&one);
            prop_assert!(!token_of.is_empty() && !token_of.contains(['.', '*', '>', ' ', '\r', '\n', '\t', '\0']));
            prop_assert_eq!(token_of == token(&other), one == other);
        }
    }
}
