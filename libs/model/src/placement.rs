//! Which scheduler replica owns a flow: a hash of the flow over the replicas that live.
//!
//! Rendezvous hashing: each replica gets a number for the flow, and the highest wins. When a replica
//! comes or goes, only its own flows move. Everybody who asks has to come to the same answer, so the
//! numbers are computed here and depend on nothing but the names.

use crate::id::FlowUid;

/// The replica that owns a flow; nothing when there is none.
pub fn owner_of<'a>(replicas: impl IntoIterator<Item = &'a str>, flow: FlowUid) -> Option<&'a str> {
    let flow = flow.0.bits();
    replicas.into_iter().max_by_key(|name| (weight(name, flow), *name))
}

/// FNV-1a over the name and the flow, mixed so that every bit counts.
fn weight(name: &str, flow: u128) -> u64 {
    let bytes = name.bytes().chain(flow.to_le_bytes());
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
