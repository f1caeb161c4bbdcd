//! References of instances to definitions.

use std::collections::{BTreeMap, BTreeSet};

use model::{EffectName, SagaStatus, TenantId};
use workflow::catalog::RequiredDefinition;
use workflow::definition::Saga;
use workflow::instance::decode;
use workflow::manifest::{self, ManifestDocument};
use workflow::{LaneRowKey, WorkflowLane};

use super::{ActiveDefinitions, DefinitionError, Definitions};
use crate::sagas::InstanceListRow;

/// Instances of one lane that are looked at: where there are more, one of them is assumed to be pinned to the definition in question.
pub(super) const LOOKED_AT_MAX: usize = 10_000;

impl Definitions {
    /// Definitions that would lack an effect if the operator had only these documents, and that are needed: a tenant has them in force,
    /// or instances run on them.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub async fn left_without(
        &self,
        documents: &[ManifestDocument],
        tenants: &[TenantId],
    ) -> Result<Vec<RequiredDefinition>, DefinitionError> {
        let mut provided = BTreeMap::new();
        let mut replaced = BTreeSet::new();
        for document in documents {
            match &document.definition {
                manifest::ManifestDefinition::Provider(provider) => {
                    provided.extend(provider.effects.iter().map(|effect| (&effect.name, &provider.tenants)));
                }
                manifest::ManifestDefinition::Saga(_) => drop(replaced.insert(document.hash)),
            }
        }
        let lacks = |saga: &Saga, tenant: &TenantId| {
            let is_there = |effect| provided.get(effect).is_some_and(|tenants| tenants.contain(tenant));
            saga.effects().iter().any(|effect: &&EffectName| !is_there(*effect))
        };
        let in_force = self.in_force();
        let mut needed = Vec::new();
        for tenant in tenants {
            for found in in_force.definitions_of(tenant) {
                let saga = found.saga;
                // A fault in the documents themselves is reported at its place there.
                if !lacks(&saga, tenant) || replaced.contains(&saga.hash) {
                    continue;
                }
                let is_needed = found.in_force && found.is_applied;
                if is_needed || self.has_instances(&in_force, tenant, &saga).await? {
                    needed.push(RequiredDefinition { saga, tenant: tenant.clone() });
                }
            }
        }
        Ok(needed)
    }

    /// Returns whether instances of a tenant run on a definition.
    async fn has_instances(
        &self,
        in_force: &ActiveDefinitions,
        tenant: &TenantId,
        saga: &Saga,
    ) -> Result<bool, DefinitionError> {
        for shard in 0..in_force.shards(tenant, &saga.name) {
            let lane = WorkflowLane::Saga { tenant: tenant.clone(), saga: saga.name.clone(), shard };
            for status in SagaStatus::ALL.into_iter().filter(|status| !status.is_end()) {
                let rows =
                    self.beside.some_of(&lane, LaneRowKey::by_status(status.as_str()), LOOKED_AT_MAX).await?;
                let is_pinned = |value: &[u8]| {
                    // A row without a definition may be pinned to this one.
                    let listed = decode::<InstanceListRow>(value).ok().and_then(|listed| listed.definition);
                    listed.is_none_or(|hash| hash == saga.hash)
                };
                if rows.len() >= LOOKED_AT_MAX || rows.iter().any(|found| is_pinned(&found.value)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
