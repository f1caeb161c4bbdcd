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

/// Answer of a provider that goes on with a call as a flow of this number.
fn running(number: u32) -> ProviderAnswer {
    ProviderAnswer::Waiting { external: Some(format!("flow {number}")) }
}

/// Orders these calls, of which the first two find room and are waited for.
async fn order(world: &World, last: u128) {
    for number in 1..=last {
        world.command(&command(number, Json::Null), &format!("w-{number}")).await;
        if number <= 2 {
            world.until(number, EffectState::Waiting).await;
        }
    }
}

async fn cancel(world: &World, number: u128) {
    let back = EffectCommand { cancel: true, ..command(number, Json::Null) };
    world.command(&back, &format!("back-{number}")).await;
}

async fn until_stopped(upstream: &Upstream, flow: &str) {
    let stop = format!("stop {flow}");
    let was = || std::future::ready(upstream.calls().contains(&stop).then_some(()));
    wait_until(was, PATIENCE, stop.clone()).await;
}

fn end_with(world: &World, number: u128, answer: ProviderAnswer) {
    let id = model::CommandId::from_bits(number);
    assert!(world.calls.notify(id, CallMessage::Answer(answer)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_open_calls_pass_commands_that_wait_for_room() {
    for mut world in each_world().await {
        world.calls_max = 2;
        let upstream = Upstream::with((1..=6).map(running));
        served(&mut world, "retry", &upstream).await;
        let id = model::CommandId::from_bits;
        order(&world, 6).await;
        // Behind four commands for which there is no room, and about one of those.
        cancel(&world, 1).await;
        cancel(&world, 4).await;
        until_stopped(&upstream, "flow 1").await;
        assert_eq!(world.open_calls().await, 2);
        end_with(&world, 1, ProviderAnswer::Cancelled);
        world.until(3, EffectState::Waiting).await;
        assert_eq!(ask(&world, "r-1", 2, EffectCallRequest::Cancel).await, LaneRequestOutcome::Done);
        until_stopped(&upstream, "flow 2").await;
        assert_eq!(world.open_calls().await, 2);
        end_with(&world, 2, ProviderAnswer::Cancelled);
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
    let upstream = Upstream::with((1..=4).map(running));
    served(&mut world, "retry", &upstream).await;
    order(&world, 4).await;
    // The second one shows that the first one was read ahead as well.
    cancel(&world, 3).await;
    cancel(&world, 1).await;
    until_stopped(&upstream, "flow 1").await;
    let broker = world.simulated.clone().expect("a simulation");
    broker.disconnect();
    end_with(&world, 1, ProviderAnswer::Cancelled);
    world.until(3, EffectState::Waiting).await;
    broker.reconnect();
    // Until that is stopped, the fourth and the cancellation behind it have no room.
    until_stopped(&upstream, "flow 3").await;
    end_with(&world, 3, ProviderAnswer::Cancelled);
    world.until(4, EffectState::Waiting).await;
    assert_eq!(world.open_calls().await, 2);
}
