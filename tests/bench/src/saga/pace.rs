//! How fast a lane sends what is to be sent, and fires timers that are due one after the other.

use std::time::{Duration, Instant};

use store::{LaneKey, RowBatch, RowKey, RowOperation};
use workflow::LaneRowKey;
use workflow::instance::encode;

use super::stage::{Backend, Stage};
use super::{Error, TICK, WAIT, event, floors, per_second};
use crate::report::Report;

/// Rows of the outbox that are sent.
const RELAYED: u64 = 60_000;
/// Rows of the outbox that are written with one commit.
const WRITTEN_AT_ONCE: u64 = 500;
/// Timers that are due in each second.
const PACE: usize = 1_000;
/// Seconds in which some are due.
const SECONDS: usize = 20;
/// Time in which all instances are started.
const LEAD: Duration = Duration::from_secs(20);

/// Sends rows of an outbox that a former owner has left, and publishes as many messages without a lane.
pub(super) async fn relay(backend: Backend, report: &mut Report) -> Result<(), Error> {
    eprintln!("{backend}: relay");
    let stage = Stage::new(backend, 1, TICK).await?;
    let floor = floors::publish(&*stage.broker).await?;
    let lane = LaneKey::new("s:t0:ticking:0");
    let epoch = stage.store.acquire_lane(&lane).await?;
    for first in (0..RELAYED).step_by(usize::try_from(WRITTEN_AT_ONCE)?) {
        let rows = (first..first + WRITTEN_AT_ONCE).map(left_row);
        let ops = rows.collect::<Result<_, Error>>()?;
        stage.store.commit(RowBatch { lane: lane.clone(), epoch, conditions: Vec::new(), ops }).await?;
    }
    let running = stage.run();
    stage.until("mycora_saga_relayed_total", 1).await;
    let begin = Instant::now();
    stage.until("mycora_saga_relayed_total", RELAYED).await;
    report.relayed(per_second(usize::try_from(RELAYED)?, begin.elapsed()), floor);
    running.stop().await
}

fn left_row(number: u64) -> Result<RowOperation, Error> {
    let correlation = format!("c-{}", number % 1000).parse().map_err(|_| "no correlation")?;
    let subject = format!("tenant.t0.effect.floor.{number}");
    let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(288));
    let id = format!("relayed-{number}");
    let row = saga::lane::relay::OutboxRow::message(
        subject,
        id,
        &"ticking".parse().map_err(|_| "no name")?,
        correlation,
        body.as_bytes(),
    );
    Ok(RowOperation::Put(RowKey::new(LaneRowKey::outbox(number).as_str()), encode(&row).into()))
}

/// Has timers come due evenly, and looks how late they fire.
pub(super) async fn timers(backend: Backend, report: &mut Report) -> Result<(), Error> {
    eprintln!("{backend}: {PACE} timers a second");
    let stage = Stage::new(backend, 1, WAIT).await?;
    let first = stage.store.now().await? + u64::try_from(LEAD.as_millis())?;
    let timers = PACE * SECONDS;
    let starts = (0..timers).map(|i| {
        let due = first + u64::try_from(i * 1000 / PACE).unwrap_or_default();
        event(0, i, "Started", "0", &format!(r#"{{"due":{due},"text":""}}"#))
    });
    stage.publish(starts).await?;
    let running = stage.run();
    stage.until_transitions(timers.try_into()?).await;
    if stage.store.now().await? >= first {
        report.late(timers);
    }
    stage.until_transitions((2 * timers).try_into()?).await;
    let (counts, all) = stage.histogram("mycora_saga_timer_lag_seconds");
    let within: Vec<_> = counts.into_iter().take_while(|(bound, _)| *bound <= 0.5).collect();
    report.paced(PACE, &within, all);
    running.stop().await
}
