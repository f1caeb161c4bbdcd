//! Calls that clients make to a suite while it is broken, drawn from a seed alone.

use proto::v1::{Backoff, FlowSpec, JobSpec, NodePolicy, NodeSpec, Script, ScriptType, script};
use testkit::Witness;

use crate::draw::Draw;
use crate::history::{PlannedFlow, PlannedJob};

/// Separates the random numbers of the load from those of the schedule.
const PURPOSE: u64 = 2;
/// A job that does what it should outlives everything but the death of its instance.
const RETRIES: u32 = 100;
/// Tries of a job that fails by itself.
const FAILING_RETRIES: u32 = 1;
/// Tries of a job in a flow that waits: what is under way when something breaks is not over when that is mended.
const WAITING_RETRIES: u32 = 8;
/// Milliseconds before each of those, at most.
const WAIT_MILLIS: u32 = 1_500;
/// Milliseconds that a job takes, at most.
const SHORT_MILLIS: u64 = 300;
/// One job in so many takes a long time, so that it still runs when the runner it was meant for first learns that it went to another.
const LONG_EACH: u64 = 4;
/// Milliseconds that it takes more than others.
const LONG_MILLIS: u64 = 1_500;
/// Before every other try that follows a failure.
const NO_WAIT_MILLIS: u32 = 100;
/// One flow in so many begins with a job that fails: all others end with it, in one commit.
const FAILING_EACH: u64 = 6;

/// The flow of this number: its name, and what is in it.
#[must_use]
pub fn flow(seed: u64, number: u64) -> (String, PlannedFlow) {
    let mut draw = Draw::new(seed, PURPOSE + (number << 8));
    let name = format!("f{number}");
    let count = usize::try_from(draw.between(1, 6)).unwrap_or(1);
    let fails = draw.below(FAILING_EACH) == 0;
    let mut jobs: Vec<PlannedJob> = Vec::new();
    for place in 0..count {
        let depends: Vec<usize> = match draw.below(3) {
            _ if fails && place > 0 => vec![0],
            // A chain, a fan-out, or by itself.
            0 => place.checked_sub(1).into_iter().collect(),
            1 if place > 0 => vec![0],
            _ => Vec::new(),
        };
        let fails = fails && place == 0;
        let is_long = !fails && draw.below(LONG_EACH) == 0;
        jobs.push(PlannedJob {
            name: format!("{name}-{place}"),
            token: format!("{:08x}", draw.below(1 << 31)),
            millis: draw.below(SHORT_MILLIS) + if is_long { LONG_MILLIS } else { 0 },
            depends,
            retries: if fails { FAILING_RETRIES } else { RETRIES },
            wait_millis: NO_WAIT_MILLIS,
            fails,
        });
    }
    (name, PlannedFlow { jobs })
}

/// A flow that waits most of its time, some eight seconds: its first job fails again and again, and one comes after it.
#[must_use]
pub fn waiting_flow(seed: u64, number: u64) -> (String, PlannedFlow) {
    let mut draw = Draw::new(seed, PURPOSE + (number << 8) + 2);
    let name = format!("w{number}");
    let mut job = |place: usize, depends: &[usize]| PlannedJob {
        name: format!("{name}-{place}"),
        token: format!("{:08x}", draw.below(1 << 31)),
        millis: draw.below(SHORT_MILLIS),
        depends: depends.to_vec(),
        retries: WAITING_RETRIES,
        wait_millis: WAIT_MILLIS,
        fails: place == 0,
    };
    let jobs = vec![job(0, &[]), job(1, &[0])];
    (name, PlannedFlow { jobs })
}

/// One job that does what it should: whether the suite works.
#[must_use]
pub fn probe(seed: u64, number: u64) -> (String, PlannedFlow) {
    let mut draw = Draw::new(seed, PURPOSE + (number << 8) + 1);
    let name = format!("probe{number}");
    let job = PlannedJob {
        name: format!("{name}-0"),
        token: format!("{:08x}", draw.below(1 << 31)),
        millis: draw.below(SHORT_MILLIS),
        depends: Vec::new(),
        retries: RETRIES,
        wait_millis: NO_WAIT_MILLIS,
        fails: false,
    };
    (name, PlannedFlow { jobs: vec![job] })
}

/// Returns the flow as a client submits it. Scripts report to the witness.
#[must_use]
pub fn spec(name: &str, flow: &PlannedFlow, witness: &Witness) -> FlowSpec {
    let node = |job: &PlannedJob| {
        let (secs, millis) = (job.millis / 1000, job.millis % 1000);
        let label = format!("{}/{}", job.name, job.token);
        let mut text = witness.shell(&label, &format!("sleep {secs}.{millis:03}"));
        if job.fails {
            text.push_str("exit 1\n");
        }
        let script = Some(Script { source: Some(script::Source::Text(text)) });
        let wait = f64::from(job.wait_millis) / 1000.0;
        let backoff = Backoff { initial_secs: wait, multiplier: 1.0, max_secs: wait };
        NodeSpec {
            name: job.name.clone(),
            depends: job.depends.iter().map(|place| flow.jobs[*place].name.clone()).collect(),
            policy: Some(NodePolicy {
                retries: job.retries,
                backoff: Some(backoff),
                ..NodePolicy::default()
            }),
            job: Some(JobSpec { script_type: ScriptType::Shell.into(), script, ..JobSpec::default() }),
            ..NodeSpec::default()
        }
    };
    FlowSpec { name: name.to_owned(), nodes: flow.jobs.iter().map(node).collect(), ..FlowSpec::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_what_fails_comes_first() {
        for number in 0..200 {
            let (_, planned) = flow(5, number);
            assert_eq!(flow(5, number).1, planned);
            for (place, job) in planned.jobs.iter().enumerate() {
                assert!(job.depends.iter().all(|before| *before < place));
                assert!(!job.fails || place == 0);
            }
        }
        let failing = (0..200).filter(|number| flow(5, *number).1.jobs.iter().any(|job| job.fails)).count();
        assert!((5..60).contains(&failing), "{failing} of 200 fail");
        assert_ne!(flow(5, 1).1, flow(6, 1).1);
    }
}
