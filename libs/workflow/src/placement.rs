//! Division of lanes among replicas: a hash of the lane over the names of the live replicas that may own it.
//!
//! Every replica that knows the same members computes the same owner. When a member joins or leaves, only lanes of that
//! member move. If two replicas know different members for a while, no harm is done: the fence of a lane excludes one of
//! them.

use std::collections::BTreeSet;

use model::placement::score;
use serde::{Deserialize, Serialize};

use crate::lane::WorkflowLane;

/// The largest share of a member.
pub const WEIGHT_MAX: u32 = 100;

/// A live replica, as it describes itself to the others. Unknown fields of a later version are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementMember {
    /// Name of the replica.
    #[serde(skip)]
    pub name: String,
    /// Version of its program. Empty when unknown.
    #[serde(default)]
    pub version: String,
    /// True if the replica owns lanes of sagas.
    pub sagas: bool,
    /// True if the replica owns lanes of effects.
    pub effects: bool,
    /// Share of lanes relative to others, from 1 to [`WEIGHT_MAX`].
    pub weight: u32,
    /// Tenants whose lanes it has given up.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub without: BTreeSet<String>,
    /// True if the replica releases all lanes and acquires no more.
    #[serde(default)]
    pub is_draining: bool,
}

impl PlacementMember {
    /// Returns whether it has the role that a lane needs.
    #[must_use]
    pub const fn has_role(&self, lane: &WorkflowLane) -> bool {
        match lane {
            WorkflowLane::Saga { .. } => self.sagas,
            WorkflowLane::Effect { .. } => self.effects,
        }
    }

    /// Returns whether it may own a lane.
    #[must_use]
    pub fn may_own(&self, lane: &WorkflowLane) -> bool {
        self.has_role(lane) && !self.is_draining && !self.without.contains(lane.tenant().as_str())
    }

    /// Number that it gets for a lane: the highest of as many as its share is.
    fn score(&self, lane: &str) -> u64 {
        let draws = 0..self.weight.clamp(1, WEIGHT_MAX);
        draws.map(|draw| score(&self.name, format!("{lane}:{draw}").as_bytes())).max().unwrap_or(0)
    }
}

/// The member that owns a lane: the one of this name if it may, else the one with the highest score. `None` where no member
/// may.
pub fn owner_of<'a>(
    members: impl IntoIterator<Item = &'a PlacementMember>,
    lane: &WorkflowLane,
    preferred: Option<&str>,
) -> Option<&'a PlacementMember> {
    let text = lane.to_string();
    members.into_iter().filter(|member| member.may_own(lane)).max_by_key(|member| {
        let is_preferred = preferred == Some(member.name.as_str());
        (is_preferred, member.score(&text), member.name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use model::TenantId;

    use super::*;

    fn member(name: &str, weight: u32) -> PlacementMember {
        PlacementMember {
            name: name.to_owned(),
            version: String::new(),
            sagas: true,
            effects: true,
            weight,
            without: BTreeSet::new(),
            is_draining: false,
        }
    }

    fn lanes(count: usize) -> Vec<WorkflowLane> {
        let tenant: TenantId = "acme".parse().expect("a tenant");
        let saga = |n: usize| format!("saga-{n}").parse().expect("a name");
        (0..count).map(|n| WorkflowLane::Saga { tenant: tenant.clone(), saga: saga(n), shard: 0 }).collect()
    }

    fn name_of(members: &[PlacementMember], lane: &WorkflowLane) -> Option<String> {
        owner_of(members, lane, None).map(|member| member.name.clone())
    }

    #[test]
    fn lanes_are_spread_and_move_only_with_their_replica() {
        let three = [member("a", 1), member("b", 1), member("c", 1)];
        let without_b = [three[2].clone(), three[0].clone()];
        let mut counts = BTreeMap::new();
        for lane in &lanes(3000) {
            let owner = name_of(&three, lane).expect("there are members");
            if owner != "b" {
                assert_eq!(name_of(&without_b, lane).as_ref(), Some(&owner), "{lane}");
            }
            *counts.entry(owner).or_insert(0) += 1;
        }
        assert!(counts.values().all(|count| (900..1100).contains(count)), "{counts:?}");
        assert_eq!(name_of(&[], &lanes(1)[0]), None);
    }

    #[test]
    fn a_share_is_a_part_of_the_lanes() {
        let members = [member("a", 1), member("b", 3)];
        let of_b = lanes(4000).iter().filter(|lane| name_of(&members, lane).as_deref() == Some("b")).count();
        assert!((2850..3150).contains(&of_b), "{of_b}");
        // More weight takes lanes from others, and moves none between them.
        let before = [member("a", 1), member("b", 1), member("c", 1)];
        let after = [member("a", 1), member("b", 1), member("c", 2)];
        for lane in &lanes(1000) {
            let (before, after) = (name_of(&before, lane), name_of(&after, lane));
            assert!(before == after || after.as_deref() == Some("c"), "{lane}: {before:?} {after:?}");
        }
    }

    #[test]
    fn the_answer_never_changes() {
        let members = [member("a", 1), member("b", 2), member("c", 1)];
        let owners: String = lanes(12).iter().filter_map(|lane| name_of(&members, lane)).collect();
        assert_eq!(owners, "bbbacabbccab");
    }

    #[test]
    fn a_member_that_may_not_own_a_lane_does_not() {
        let tenant: TenantId = "acme".parse().expect("a tenant");
        let effect = WorkflowLane::Effect { tenant: tenant.clone(), effect: "pay".parse().expect("a name") };
        let saga = &lanes(1)[0];
        let mut members = [member("a", 1), member("b", 1)];
        members[0].effects = false;
        members[1].sagas = false;
        assert_eq!(name_of(&members, saga).as_deref(), Some("a"));
        assert_eq!(name_of(&members, &effect).as_deref(), Some("b"));
        assert_eq!(owner_of(&members, &effect, Some("a")).map(|member| member.name.as_str()), Some("b"));
        members[1].without.insert(tenant.to_string());
        assert_eq!(name_of(&members, &effect), None);
        members[0].is_draining = true;
        assert_eq!(name_of(&members, saga), None);
    }

    #[test]
    fn a_lane_goes_where_it_was_moved_to_while_that_one_lives() {
        let members = [member("a", 1), member("b", 100)];
        for lane in &lanes(50) {
            let owner = owner_of(&members, lane, Some("a"));
            assert_eq!(owner.map(|member| member.name.as_str()), Some("a"));
            assert_eq!(owner_of(&members[1..], lane, Some("a")), members.last());
        }
    }

    #[test]
    fn unknown_fields_of_a_placement_member_are_ignored() {
        let text = r#"{"sagas":true,"effects":false,"weight":2,"is_new":1}"#;
        let read: PlacementMember = serde_json::from_str(text).expect("words");
        assert_eq!(read, PlacementMember { effects: false, name: String::new(), ..member("a", 2) });
        let drained =
            PlacementMember { is_draining: true, without: BTreeSet::from(["acme".to_owned()]), ..read };
        let written = serde_json::to_string(&drained).expect("words");
        assert_eq!(serde_json::from_str::<PlacementMember>(&written).ok(), Some(drained));
    }
}
