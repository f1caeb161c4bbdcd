//! Open calls, and requests about them while commands wait for room.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::EffectState;
use saga::effects::CallMessage;
use saga::lane::answers::LaneRequestOutcome;
use testkit::{PATIENCE, wait_until};
use workflow::Json;
use workflow::input::CommandOutcome;
use workflow::lane_request::EffectCallRequest;
use workflow::ledger::ProviderAnswer;
use workflow::message::EffectCommand;

use crate::effects::{Upstream, ask, command, each_world, served};
use crate::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_for_open_calls_come_past_commands_that_wait_for_room() {
    for mut world in each_world().await {
        world.calls_max = 2;
        let waiting = |number| ProviderAnswer::Waiting { external: Some(format!("flow {number}")) };
        let upstream = Upstream::with((1..=6).map(waiting));
        served(&mut world, "retry", &upstream).await;
        let id = model::CommandId::from_bits;
        let cancel = async |number| {
            let back = EffectCommand { cancel: true, ..command(number, Json::Null) };
            world.command(&back, &format!("back-{number}")).await;
        };
        let stopped = async |flow: &str| {
            let stop = format!("stop {flow}");
            let was = || std::future::ready(upstream.calls().contains(&stop).then_some(()));
            wait_until(was, PATIENCE, stop.clone()).await;
        };
        let end_with = |number, answer| assert!(world.calls.notify(id(number), CallMessage::Answer(answer)));
        for number in 1..=6 {
            world.command(&command(number, Json::Null), &format!("w-{number}")).await;
            if number <= 2 {
                world.until(number, EffectState::Waiting).await;
            }
        }
        // Behind four commands for which there is no room, and about one of those.
        cancel(1).await;
        cancel(4).await;
        stopped("flow 1").await;
        assert_eq!(world.open_calls().await, 2);
        end_with(1, ProviderAnswer::Cancelled);
        world.until(3, EffectState::Waiting).await;
        assert_eq!(ask(&world, "r-1", 2, EffectCallRequest::Cancel).await, LaneRequestOutcome::Done);
        stopped("flow 2").await;
        assert_eq!(world.open_calls().await, 2);
        end_with(2, ProviderAnswer::Cancelled);
        // An unwanted call may end by itself before it is answered here: no answer is asked for then.
        let has_ended = async || {
            world.has_call(4).await.then_some(())?;
            let call = world.call(4).await;
            if call.is_unwanted {
                world.calls.notify(id(4), CallMessage::Answer(ProviderAnswer::Cancelled));
            }
            call.state.is_end().then_some(())
        };
        wait_until(has_ended, PATIENCE, "the fourth is taken, and ends since it is not wanted").await;
        // The next owner of the lane goes on with open calls, and with the commands that wait.
        world.until(5, EffectState::Waiting).await;
        assert_eq!(world.open_calls().await, 2);
        assert_eq!(ask(&world, "r-1", 2, EffectCallRequest::Cancel).await, LaneRequestOutcome::Done);
        world.crash().await;
        world.own_effect(Arc::new(upstream.clone()));
        let adopted = || {
            let calls = upstream.calls();
            // Once or more: a lane may change its owner again on a busy machine.
            let adopted: BTreeSet<_> = calls.iter().filter(|call| call.starts_with("adopt")).collect();
            std::future::ready((adopted.len() == 2).then_some(()))
        };
        wait_until(adopted, PATIENCE, "what is open is adopted").await;
        for number in [3, 5, 6] {
            let notified = || {
                std::future::ready(
                    world
                        .calls
                        .notify(id(number), CallMessage::Answer(ProviderAnswer::Succeeded(Json::Null)))
                        .then_some(()),
                )
            };
            world.until(number, EffectState::Waiting).await;
            wait_until(notified, PATIENCE, "it hears").await;
            world.until(number, EffectState::Succeeded).await;
        }
        let mut ends = BTreeMap::new();
        for _ in 1..=6 {
            let result = world.result().await;
            ends.insert(result.command_id, result.result_type);
        }
        let expected = (1..=6).map(|number| {
            (
                id(number),
                if [1, 2, 4].contains(&number) {
                    CommandOutcome::Cancelled
                } else {
                    CommandOutcome::Succeeded
                },
            )
        });
        assert_eq!(ends, expected.collect());
        world.stop().await;
        assert_eq!(world.open_calls().await, 0);
    }
}

#[tokio::test]
async fn an_early_cancellation_that_cannot_be_read_is_read_again() {
    let mut world = World::simulated().await;
    world.calls_max = 2;
    let waiting = |number| ProviderAnswer::Waiting { external: Some(format!("flow {number}")) };
    let upstream = Upstream::with((1..=4).map(waiting));
    served(&mut world, "retry", &upstream).await;
    let id = model::CommandId::from_bits;
    for number in 1..=4 {
        world.command(&command(number, Json::Null), &format!("w-{number}")).await;
        if number <= 2 {
            world.until(number, EffectState::Waiting).await;
        }
    }
    // The second one shows that the first one was read ahead as well.
    for number in [3, 1] {
        let back = EffectCommand { cancel: true, ..command(number, Json::Null) };
        world.command(&back, &format!("back-{number}")).await;
    }
    let is_stopped = |flow: &str| {
        let (upstream, stop) = (upstream.clone(), format!("stop {flow}"));
        move || std::future::ready(upstream.calls().contains(&stop).then_some(()))
    };
    wait_until(is_stopped("flow 1"), PATIENCE, "the first is stopped").await;
    let broker = world.simulated.clone().expect("a simulation");
    broker.disconnect();
    assert!(world.calls.notify(id(1), CallMessage::Answer(ProviderAnswer::Cancelled)));
    world.until(3, EffectState::Waiting).await;
    broker.reconnect();
    // Until that is stopped, the fourth and the cancellation behind it have no room.
    wait_until(is_stopped("flow 3"), PATIENCE, "the third is stopped").await;
    assert!(world.calls.notify(id(3), CallMessage::Answer(ProviderAnswer::Cancelled)));
    world.until(4, EffectState::Waiting).await;
    assert_eq!(world.open_calls().await, 2);
}
