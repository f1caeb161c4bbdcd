//! Emptying a machine.

use std::future::pending;

use identity::Identity;
use model::supervision::JobEventKind;
use model::{ActorId, Isolation};
use proto::v1::{DrainRequest, GetSupervisorRequest, GetSupervisorResponse, ResumeRequest};
use queue::InstanceCommand;
use testkit::{PATIENCE, wait_until};
use tonic::Code;

use crate::backlog::execution;
use crate::setup::Machine;

async fn describe(machine: &Machine) -> GetSupervisorResponse {
    let mut client = machine.client(Identity::Admin);
    client.get_supervisor(GetSupervisorRequest {}).await.expect("told").into_inner()
}

#[tokio::test]
async fn a_drain_gives_back_what_waits_and_outlives_a_restart() {
    let mut machine = Machine::start(|_, _| {}).await;
    let coordinator = machine.coordinator().await;
    let mut worker = machine.instance(1, Isolation::Basic).await;
    coordinator.sees(1).await;
    let (runs, waits) = (execution(1, 1), execution(1, 2));
    coordinator.run(&runs).await.expect("accepted");
    worker.take().await;
    coordinator.run(&waits).await.expect("accepted");
    let before = describe(&machine).await;
    assert_eq!((before.draining, before.queued, before.running), (false, 1, 1));

    let ask = || DrainRequest { deadline_secs: Some(30), ..Default::default() };
    for who in [Identity::Actor(ActorId(1)), Identity::Service(identity::ServiceName::MyceliumGateway)] {
        let denied = machine.client(who).drain(ask()).await.expect_err("not the admin");
        assert_eq!(denied.code(), Code::PermissionDenied);
        let denied = machine.client(who).resume(ResumeRequest::default()).await.expect_err("not the admin");
        assert_eq!(denied.code(), Code::PermissionDenied);
    }
    let mut admin = machine.client(Identity::Admin);
    let too_long = admin
        .drain(DrainRequest { deadline_secs: Some(u32::MAX), ..Default::default() })
        .await
        .expect_err("too long");
    assert_eq!(too_long.code(), Code::InvalidArgument);
    let drained = admin.drain(ask()).await.expect("drained").into_inner();
    assert_eq!((drained.queued, drained.running), (0, 1));
    assert!(drained.drain_deadline_time.is_some());

    coordinator.receives(waits.job_key, |kind| matches!(kind, JobEventKind::Returned).then_some(())).await;
    let command = worker.control.next(pending()).await.expect("an answer");
    assert_eq!(command, Some(InstanceCommand::Drain { deadline_secs: Some(30) }));
    let announced = || async { coordinator.presence().await.draining.then_some(()) };
    wait_until(announced, PATIENCE, "the presence says so").await;
    let refused = Err(("DRAINING".to_owned(), false));
    assert_eq!(coordinator.run(&execution(1, 3)).await, refused);
    assert_eq!(coordinator.run(&runs).await, Ok(()), "what was accepted stays accepted");

    machine.stop_supervisor().await;
    machine.start_supervisor().await;
    let coordinator = machine.coordinator().await;
    assert_eq!(coordinator.run(&execution(2, 1)).await, refused, "still, before anybody looked");
    let after = describe(&machine).await;
    assert_eq!((after.draining, after.running), (true, 1));
    assert_eq!(after.drain_deadline_time, drained.drain_deadline_time);
    // What was on its way in while the drain began is given back by the next look.
    let late = execution(3, 1);
    let offer = queue::JobOffer {
        execution: late.clone(),
        coordinator: coordinator.name.clone(),
        grants: model::Grants::default(),
        condition: queue::AcceptCondition::None,
        weight: std::num::NonZeroU32::MIN,
    };
    machine.queue.accept(offer).await.expect("accepted");
    coordinator.receives(late.job_key, |kind| matches!(kind, JobEventKind::Returned).then_some(())).await;

    machine.client(Identity::Admin).resume(ResumeRequest::default()).await.expect("resumed");
    assert_eq!(
        coordinator.run(&execution(2, 1)).await,
        refused,
        "its coordinator has gone on to the next attempt"
    );
    assert_eq!(coordinator.run(&execution(2, 2)).await, Ok(()));
    machine.stop_supervisor().await;
    machine.start_supervisor().await;
    let resumed = describe(&machine).await;
    assert!(!resumed.draining && resumed.drain_time.is_none());
    let announced = || async { (!machine.coordinator().await.presence().await.draining).then_some(()) };
    wait_until(announced, PATIENCE, "the presence says so").await;
}
