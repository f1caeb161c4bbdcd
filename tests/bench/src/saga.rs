//! Cost of sagas: transitions, latency, whole orders, undoing, waiting, and timers that are due at once.
//!
//! Runs the service within this process over a real `nats-server`, once with the embedded store and once with Redis that
//! syncs each write. Figures stand beside what the store and the broker do at best in the same run.

mod floors;
mod growth;
mod pace;
mod stage;
mod upstream;

use std::time::{Duration, Instant};

use broker::{CursorSpec, CursorStart, PullLimit};
use saga::lane::WORKFLOW_COMMANDS;

use self::stage::{Backend, Event, Stage};
use self::upstream::Upstream;
use crate::processes::{own_bytes, processor_time};
use crate::report::Report;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Lanes, where there are several: one of each tenant.
const LANES: usize = 16;
/// Events of the measurement of transitions.
const TICKS: usize = 40_000;
/// Instances that share them.
const TICKING: usize = 1_000;
/// Orders that run at once.
const ORDERS: usize = 2_000;
/// Orders that are looked at one after the other.
const ONE_BY_ONE: usize = 300;
/// Sagas that are undone, one after the other.
const UNDONE: usize = 50;
/// Instances that wait, and timers that are due at once.
const WAITING: usize = 100_000;
/// Time in which everything is written before timers come due.
const LEAD: Duration = Duration::from_secs(90);

/// A saga that only counts.
const TICK: &str = "kind: Saga\nname: ticking\nversion: 1\nstate: { count: int }\nsources: [{ aggregate: Clock }]\n\
    start: { on: Started, set: { count: 0 }, goto: wait }\n\
    steps: { wait: { on: { Ticked: { set: { count: \"${{ state.count + 1 }}\" }, goto: wait } } } }\n";

/// A saga that waits for years, or until a time that its start names.
const WAIT: &str = "kind: Saga\nname: waiting\nversion: 1\nstate: { text: text, due: int }\nsources: [{ aggregate: Clock }]\n\
    start: { on: Started, set: { text: \"${{ event.data.text }}\", due: \"${{ event.data.due }}\" }, goto: wait }\n\
    steps: { wait: { timers: { late: { due: state.due, raise: Late } }, on: { Late: { end: completed } } } }\n";

/// Parts that can be measured by themselves, by their names on the command line.
const PARTS: [&str; 9] =
    ["transitions", "relay", "latency", "orders", "undoing", "waiting", "pace", "finished", "idle"];

/// Measures the parts that are named, or everything, on the stores that are named, or on both.
pub(crate) async fn measure(report: &mut Report, wanted: &[&str]) -> Result<(), Error> {
    let stores = ["embedded", "redis"];
    if let Some(unknown) = wanted.iter().find(|name| !PARTS.contains(name) && !stores.contains(name)) {
        let known = PARTS.iter().chain(&stores).copied().collect::<Vec<_>>().join(", ");
        return Err(format!("`{unknown}` is no part of it; there are: {known}").into());
    }
    let is_any = |names: &[&str]| names.iter().any(|name| wanted.contains(name));
    let is_wanted = |name: &str| wanted.contains(&name) || !is_any(&PARTS);
    for (name, backend) in stores.into_iter().zip([Backend::Embedded, Backend::Redis]) {
        if is_any(&stores) && !wanted.contains(&name) {
            continue;
        }
        report.title(&format!("sagas, {backend}"));
        for part in PARTS.into_iter().filter(|part| is_wanted(part)) {
            Box::pin(measure_part(part, backend, report)).await?;
        }
    }
    Ok(())
}

async fn measure_part(part: &str, backend: Backend, report: &mut Report) -> Result<(), Error> {
    match part {
        "transitions" => {
            let floor = floors::store(backend).await?;
            report.rate("the store alone, 64 commits of 4 rows at once", floor);
            report.spread("one commit of 4 rows at a time", floors::commits(backend).await?);
            for lanes in [1, LANES] {
                let (rate, processor) = transitions(backend, lanes).await?;
                report.transitions(lanes, rate, processor, floor);
            }
        }
        "relay" => pace::relay(backend, report).await?,
        "latency" => latency(backend, report).await?,
        "orders" => {
            let name = format!("{ORDERS} orders with three calls and a command, at once");
            report.rate(&name, orders(backend).await?);
        }
        "undoing" => {
            report.spread("10 steps, nine of them undone, one saga at a time", undoing(backend).await?);
        }
        "waiting" => waiting(backend, report).await?,
        "pace" => pace::timers(backend, report).await?,
        "finished" => {
            growth::finished(backend, report).await?;
            growth::one_instance(backend, report).await?;
        }
        _ => growth::idle(backend, report).await?,
    }
    Ok(())
}

/// Applies events that are in the stream already; gives transitions a second and the processor time of each.
async fn transitions(backend: Backend, lanes: usize) -> Result<(f64, Duration), Error> {
    eprintln!("{backend}: transitions in {lanes} lanes");
    let stage = Stage::new(backend, lanes, TICK).await?;
    let starts = (0..TICKING).map(|i| event(i % lanes, i, "Started", "0", "null"));
    let rounds = 1..TICKS / TICKING;
    let ticks = rounds.flat_map(|round| {
        (0..TICKING).map(move |i| event(i % lanes, i, "Ticked", &round.to_string(), "null"))
    });
    stage.publish(starts.chain(ticks)).await?;
    let (begin, before) = (Instant::now(), processor_time(std::process::id())?);
    let running = stage.run();
    stage.until_transitions(TICKS as u64).await;
    let (took, used) = (begin.elapsed(), processor_time(std::process::id())?.saturating_sub(before));
    running.stop().await?;
    Ok((per_second(TICKS, took), used / u32::try_from(TICKS)?))
}

/// Times from an event's acknowledgement to the delivery of the command that follows.
async fn latency(backend: Backend, report: &mut Report) -> Result<(), Error> {
    eprintln!("{backend}: latency");
    let upstream = Upstream::start().await?;
    let stage = Stage::new(backend, 1, &upstream.orders()).await?;
    let running = stage.run();
    // The first order has the lanes taken and the streams made.
    stage.publish([event(0, ONE_BY_ONE, "OrderPlaced", "0", "{}")]).await?;
    stage.until_transitions(1).await;
    let spec =
        CursorSpec::new(WORKFLOW_COMMANDS, "bench", "tenant.t0.effect.reserve.*", CursorStart::After(0));
    let mut commands = stage.broker.open(&spec).await?;
    commands.next(PullLimit { messages: 1, bytes: 1 << 20 }).await?.receipt.ack();
    let mut times = Vec::with_capacity(ONE_BY_ONE);
    for order in 0..ONE_BY_ONE {
        stage.publish([event(0, order, "OrderPlaced", "0", "{}")]).await?;
        let begin = Instant::now();
        let delivered = commands.next(PullLimit { messages: 1, bytes: 1 << 20 }).await?;
        times.push(begin.elapsed());
        delivered.receipt.ack();
    }
    report.spread("event stored to command in its stream, idle", times);
    let (commits, all) = stage.histogram("mycora_saga_commit_seconds");
    report.commits(&commits, all);
    running.stop().await
}

/// Whole orders, each with three calls over HTTP and a command; gives orders a second.
async fn orders(backend: Backend) -> Result<f64, Error> {
    eprintln!("{backend}: orders");
    let upstream = Upstream::start().await?;
    let stage = Stage::new(backend, 1, &upstream.orders()).await?;
    let placed = (0..ORDERS).map(|order| event(0, order, "OrderPlaced", "placed", "{}"));
    let paid = (0..ORDERS).map(|order| event(0, order, "Paid", "paid", "{}"));
    stage.publish(placed.chain(paid)).await?;
    let begin = Instant::now();
    let running = stage.run();
    upstream.until_notified(ORDERS).await;
    let took = begin.elapsed();
    running.stop().await?;
    Ok(per_second(ORDERS, took))
}

/// Times of sagas whose tenth step fails, from their start to the last compensation.
async fn undoing(backend: Backend) -> Result<Vec<Duration>, Error> {
    eprintln!("{backend}: undoing");
    let upstream = Upstream::start().await?;
    let stage = Stage::new(backend, 1, &upstream.ten_steps()).await?;
    let running = stage.run();
    let mut times = Vec::with_capacity(UNDONE);
    for saga in 0..UNDONE {
        stage.publish([event(0, saga, "OrderPlaced", "0", "{}")]).await?;
        let begin = Instant::now();
        upstream.until_notified(saga + 1).await;
        times.push(begin.elapsed());
    }
    running.stop().await?;
    Ok(times)
}

/// Instances that wait: their cost in memory and in the store, and how long their timers take that are due at once.
async fn waiting(backend: Backend, report: &mut Report) -> Result<(), Error> {
    eprintln!("{backend}: {WAITING} instances that wait");
    let stage = Stage::new(backend, 1, WAIT).await?;
    let (memory, stored) = (own_bytes(std::process::id())?, stage.stored_bytes()?);
    let due = stage.store.now().await? + u64::try_from(LEAD.as_millis())?;
    let data = format!(r#"{{"due":{due},"text":"{}"}}"#, "x".repeat(450));
    stage.publish((0..WAITING).map(|i| event(0, i, "Started", "0", &data))).await?;
    let running = stage.run();
    stage.until_transitions(WAITING as u64).await;
    let memory = own_bytes(std::process::id())?.saturating_sub(memory);
    let stored = stage.stored_bytes()?.saturating_sub(stored);
    report.waiting_sagas(WAITING, memory, stored);
    if stage.store.now().await? >= due {
        report.late(WAITING);
    }
    stage.until_transitions(2 * WAITING as u64).await;
    let late = stage.store.now().await?.saturating_sub(due);
    report.due_at_once(WAITING, Duration::from_millis(late));
    running.stop().await
}

fn event(tenant: usize, instance: usize, kind: &str, id: &str, data: &str) -> Event {
    Event {
        tenant: format!("t{tenant}"),
        correlation: format!("c-{instance}"),
        kind: kind.to_owned(),
        id: format!("{instance}-{kind}-{id}"),
        data: data.to_owned(),
    }
}

fn per_second(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / took.as_secs_f64()
}
