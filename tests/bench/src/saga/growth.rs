//! Remains of ended instances, growth of one instance that never ends, and cost of lanes that have nothing to do.

use std::time::{Duration, Instant};

use super::stage::{Backend, Stage};
use super::{Error, TICK, event, per_second};
use crate::processes::{own_bytes, processor_time};
use crate::report::Report;

/// Instances that end.
const ENDED: usize = 1_000_000;
/// Instances that are started before the next are.
const ROUND: usize = 20_000;
/// Events of one instance.
const EVENTS: usize = 100_000;
/// Lanes that have nothing to do.
const IDLE_LANES: usize = 1_000;
/// Time for which they are watched.
const WATCHED: Duration = Duration::from_secs(20);

/// A saga that ends with its second event.
const SHORT: &str = "kind: Saga\nname: short\nversion: 1\nsources: [{ aggregate: Clock }]\n\
    start: { on: Started, goto: wait }\n\
    steps: { wait: { on: { Ticked: { end: completed } } } }\n";

/// Starts instances that end, and looks what they leave.
pub(super) async fn finished(backend: Backend, report: &mut Report) -> Result<(), Error> {
    eprintln!("{backend}: {ENDED} instances that end");
    let stage = Stage::new(backend, 1, SHORT).await?;
    let stored = stage.stored_bytes()?;
    let (running, begin) = (stage.run(), Instant::now());
    let mut after_some = 0;
    for round in 0..ENDED / ROUND {
        let instances = round * ROUND..(round + 1) * ROUND;
        let starts = instances.clone().map(|i| event(0, i, "Started", "0", "null"));
        stage.publish(starts.chain(instances.map(|i| event(0, i, "Ticked", "1", "null")))).await?;
        stage.until_transitions(((round + 1) * ROUND * 2).try_into()?).await;
        if (round + 1) * ROUND * 5 == ENDED {
            after_some = own_bytes(std::process::id())?;
        }
    }
    let rate = per_second(ENDED, begin.elapsed());
    // All of the process: it has to stay as it is, whatever that was at first.
    let memory = own_bytes(std::process::id())?;
    let stored = stage.stored_bytes()?.saturating_sub(stored);
    report.ended_sagas(ENDED, [after_some, memory], stored, rate);
    running.stop().await
}

/// Gives one instance many events, and looks how it grows.
pub(super) async fn one_instance(backend: Backend, report: &mut Report) -> Result<(), Error> {
    eprintln!("{backend}: one instance with {EVENTS} events");
    let stage = Stage::new(backend, 1, TICK).await?;
    let stored = stage.stored_bytes()?;
    let (running, begin) = (stage.run(), Instant::now());
    stage.publish([event(0, 0, "Started", "0", "null")]).await?;
    let ticks =
        |events: std::ops::Range<usize>| events.map(|i| event(0, 0, "Ticked", &i.to_string(), "null"));
    stage.publish(ticks(1..EVENTS / 10)).await?;
    stage.until_transitions((EVENTS / 10).try_into()?).await;
    let after_some = stage.stored_bytes()?.saturating_sub(stored);
    stage.publish(ticks(EVENTS / 10..EVENTS)).await?;
    stage.until_transitions(EVENTS.try_into()?).await;
    let rate = per_second(EVENTS, begin.elapsed());
    report.one_instance(EVENTS, [after_some, stage.stored_bytes()?.saturating_sub(stored)], rate);
    running.stop().await
}

/// Owns many lanes for which nothing comes.
pub(super) async fn idle(backend: Backend, report: &mut Report) -> Result<(), Error> {
    eprintln!("{backend}: {IDLE_LANES} idle lanes");
    let memory = own_bytes(std::process::id())?;
    let stage = Stage::new(backend, IDLE_LANES, TICK).await?;
    let running = stage.run();
    stage.until("mycora_saga_lanes_owned", IDLE_LANES.try_into()?).await;
    // Cursors are made behind that.
    tokio::time::sleep(WATCHED).await;
    let before = processor_time(std::process::id())?;
    tokio::time::sleep(WATCHED).await;
    let used = processor_time(std::process::id())?.saturating_sub(before);
    let memory = own_bytes(std::process::id())?.saturating_sub(memory);
    report.idle_lanes(IDLE_LANES, used.as_secs_f64() / WATCHED.as_secs_f64(), memory);
    running.stop().await
}
