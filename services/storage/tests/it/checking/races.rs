//! Checks of a context that is in use: changes between two reads are no findings.

use std::sync::atomic::{AtomicU32, Ordering};

use model::NodeState;
use proto::internal::v1 as wire;
use proto::v1;

use super::{change, check, stocked};
use crate::letters::{chat, send};
use crate::places::{Redis, scenarios};
use crate::received::{accepted, letter};
use crate::stage::{CONTEXT, EXECUTOR, READER, Stage};

/// Checks that have to have been made while the context changed.
const CHECKS: u32 = 20;

/// Flows begin, are worked on, end, are run again and are removed, until enough checks were made.
async fn keep_changing(stage: &Stage<impl Redis>, checks: &AtomicU32) -> u32 {
    let mut rounds = 0;
    while checks.load(Ordering::Relaxed) < CHECKS {
        let mut flow = stage.started(3).await;
        let step = wire::CommitRequest {
            nodes: vec![change(&flow, 0, NodeState::Running)],
            messages: vec![flow.message(1000 + rounds)],
            due_millis: 4_000_000_000_000,
            ..flow.step()
        };
        stage.apply(&mut flow, step).await;
        stage.push(&flow, &model::FlowInput::Signal { name: "go".parse().unwrap() }).await;
        let nodes = (0..3).map(|place| change(&flow, place, NodeState::Completed)).collect();
        let end = wire::CommitRequest { nodes, inputs_taken: 1, ..flow.end() };
        stage.apply(&mut flow, end).await;
        send(stage, EXECUTOR, chat(&READER.to_string(), "on the way")).await;
        accepted(stage, &letter(100 + rounds)).await;
        if rounds % 2 == 0 {
            let remove = wire::RemoveFlowRequest {
                context_id: CONTEXT,
                flow_id: flow.id,
                on_behalf_of: EXECUTOR,
                ..Default::default()
            };
            stage.flows().remove_flow(remove).await.unwrap();
        } else {
            stage.flows().restart_flow(flow.restart()).await.unwrap();
        }
        rounds += 1;
    }
    rounds
}

async fn races_are_no_findings(stage: Stage<impl Redis>) {
    stocked(&stage).await;
    let checks = AtomicU32::new(0);
    let checking = async {
        let mut repaired: Vec<v1::ContextFinding> = Vec::new();
        for n in 0..CHECKS {
            repaired.extend(check(&stage, n % 2 == 0).await.findings);
            checks.fetch_add(1, Ordering::Relaxed);
        }
        repaired
    };
    let (rounds, findings) = tokio::join!(keep_changing(&stage, &checks), checking);
    assert!(rounds > 0);
    assert!(findings.is_empty(), "{findings:#?}");
    check(&stage, false).await.assert_healthy("afterwards");
}

scenarios!(races_are_no_findings);
