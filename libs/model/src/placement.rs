//! Division of things among the live replicas: a hash of the thing over their names decides the owner.
//!
//! Rendezvous hashing: each replica gets a number for the thing, and the highest wins. When a replica
//! comes or goes, only its own things move. Everybody who asks has to come to the same answer, so the
//! numbers are computed here and depend on nothing but the names.

use crate::id::FlowUid;

/// The scheduler replica that owns a flow; `None` without replicas.
pub fn owner_of<'a>(replicas: impl IntoIterator<Item = &'a str>, flow: FlowUid) -> Option<&'a str> {
    let flow = flow.0.bits().to_le_bytes();
    replicas.into_iter().max_by_key(|name| (score(name, &flow), *name))
}

/// Number that a replica gets for a thing: FNV-1a over the name and the thing, mixed so that every bit counts. It is the same for ever.
#[must_use]
pub fn score(name: &str, thing: &[u8]) -> u64 {
    let bytes = name.bytes().chain(thing.iter().copied());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The finalizer of MurmurHash3.
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::id::Uid;

    #[test]
    fn flows_are_spread_and_move_only_with_their_replica() {
        let flows: Vec<FlowUid> = (0..3000).map(|_| FlowUid::random()).collect();
        let three = ["a", "b", "https://c:7702"];
        let mut counts = BTreeMap::new();
        for flow in &flows {
            let owner = owner_of(three, *flow).expect("there are replicas");
            *counts.entry(owner).or_insert(0) += 1;
            if owner != "b" {
                assert_eq!(owner_of(["https://c:7702", "a"], *flow), Some(owner));
            }
        }
        assert!(counts.values().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert_eq!(owner_of([], flows[0]), None);
    }

    #[test]
    fn the_answer_never_changes() {
        let owners: Vec<_> =
            (1..=6).map(|n| owner_of(["a", "b", "c"], FlowUid(Uid::from_bits(n))).expect("one")).collect();
        assert_eq!(owners, ["a", "c", "b", "c", "a", "b"]);
    }
}
