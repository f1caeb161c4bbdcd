//! Why a lane has no owner, and the way out.

use workflow::WorkflowLane;
use workflow::placement::PlacementMember;

/// Returns why no live replica may own a lane; `None` where one may.
pub(crate) fn why(members: &[PlacementMember], lane: &WorkflowLane) -> Option<String> {
    if members.iter().any(|member| member.may_own(lane)) {
        return None;
    }
    if members.is_empty() {
        return Some("this replica gets no answer from its store, and knows of no owner".to_owned());
    }
    let role = match lane {
        WorkflowLane::Saga { .. } => "saga",
        WorkflowLane::Effect { .. } => "effect",
    };
    let able: Vec<_> = members.iter().filter(|member| member.has_role(lane)).collect();
    if able.is_empty() {
        return Some(format!(
            "no replica that lives has the role `{role}`; start one with --role {role} or --role combined"
        ));
    }
    if able.iter().all(|member| member.is_draining) {
        return Some(format!("every replica with the role `{role}` drains; start another one"));
    }
    Some(format!(
        "every replica with the role `{role}` drains, or was told to give up the lanes of its tenant; start another one"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_reason_for_an_unowned_lane_is_given_with_a_remedy() {
        let member = |sagas, without: &[&str], is_draining| PlacementMember {
            name: "a".to_owned(),
            version: String::new(),
            sagas,
            effects: false,
            weight: 1,
            without: without.iter().map(|tenant| (*tenant).to_owned()).collect::<BTreeSet<_>>(),
            is_draining,
        };
        let tenant = || "acme".parse().expect("a tenant");
        let saga = WorkflowLane::Saga { tenant: tenant(), saga: "order".parse().expect("a name"), shard: 0 };
        let effect = WorkflowLane::Effect { tenant: tenant(), effect: "pay".parse().expect("a name") };
        let good = member(true, &["other"], false);
        for (members, lane, part) in [
            (vec![good.clone()], &saga, None),
            (vec![member(true, &[], true), good.clone()], &saga, None),
            (vec![], &saga, Some("gets no answer from its store")),
            (vec![good], &effect, Some("start one with --role effect")),
            (vec![member(true, &[], true)], &saga, Some("role `saga` drains; start another one")),
            (vec![member(true, &["acme"], false)], &saga, Some("told to give up the lanes of its tenant")),
        ] {
            let why = why(&members, lane);
            assert_eq!(why.is_some(), part.is_some(), "{why:?}");
            assert!(part.is_none_or(|part| why.as_ref().is_some_and(|why| why.contains(part))), "{why:?}");
        }
    }
}
