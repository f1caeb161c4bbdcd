//! Lanes: units with one owner at a time.

use std::fmt;

use model::{CorrelationId, EffectName, SagaName, TenantId};

/// The most lanes that the instances of one saga are spread over.
pub const SHARDS_MAX: u8 = 16;

/// Unit that has one owner at a time and is committed by itself.
///
/// Displayed as in keys: `s:<tenant>:<saga>:<shard>` and `e:<tenant>:<effect>:0`, where the tenant is `%` when there
/// are none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkflowLane {
    /// Instances of a saga.
    Saga {
        /// Tenant that the lane belongs to.
        tenant: TenantId,
        /// Saga whose instances it runs.
        saga: SagaName,
        /// Number of the shard: see [`shard`].
        shard: u8,
    },
    /// Calls of an effect.
    Effect {
        /// Tenant that the lane belongs to.
        tenant: TenantId,
        /// Effect whose calls the lane makes.
        effect: EffectName,
    },
}

impl WorkflowLane {
    /// Returns the tenant that owns the lane.
    #[must_use]
    pub const fn tenant(&self) -> &TenantId {
        match self {
            Self::Saga { tenant, .. } | Self::Effect { tenant, .. } => tenant,
        }
    }
}

impl fmt::Display for WorkflowLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenant = if self.tenant().is_single() { "%" } else { self.tenant().as_str() };
        match self {
            Self::Saga { saga, shard, .. } => write!(f, "s:{tenant}:{saga}:{shard}"),
            Self::Effect { effect, .. } => write!(f, "e:{tenant}:{effect}:0"),
        }
    }
}

/// Returns the shard of a saga that a correlation belongs to, from 0 on: FNV-1a of 64 bits over tenant and correlation. The
/// result never changes, on any replica.
#[must_use]
pub fn shard(tenant: &TenantId, correlation: &CorrelationId, shards: u8) -> u8 {
    let bytes = tenant.as_str().bytes().chain([0]).chain(correlation.as_str().bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    u8::try_from(hash % u64::from(shards.max(1))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_written_as_in_keys() {
        let saga = |tenant| WorkflowLane::Saga { tenant, saga: "order".parse().expect("a name"), shard: 3 };
        assert_eq!(saga("acme".parse().expect("a tenant")).to_string(), "s:acme:order:3");
        assert_eq!(saga(TenantId::single()).to_string(), "s:%:order:3");
        let effect = WorkflowLane::Effect {
            tenant: "a-b".parse().expect("a tenant"),
            effect: "pay".parse().expect("a name"),
        };
        assert_eq!((effect.to_string().as_str(), effect.tenant().as_str()), ("e:a-b:pay:0", "a-b"));
    }

    #[test]
    fn shards_are_for_ever_and_even() {
        let tenant: TenantId = "acme".parse().expect("a tenant");
        let of = |id: usize, shards| {
            shard(&tenant, &format!("order-{id}").parse().expect("a correlation"), shards)
        };
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|id| of(id, 16)), [2, 5, 12, 15, 6, 9, 0, 3]);
        let mut counts = [0; 16];
        for id in 0..16_000 {
            counts[usize::from(of(id, SHARDS_MAX))] += 1;
            assert_eq!(of(id, 1), 0);
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
