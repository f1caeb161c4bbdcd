//! Telemetry of transitions: counts, spans, and whether recomputing them gives the same result.

use model::CorrelationId;
use workflow::WorkflowLane;
use workflow::replay::{self, ComputedTransition, ReplayDifference};
use workflow::step::InputDisposition;

use super::input_decision::InputDecision;
use super::{QueuedInput, SagaLaneContext};
use crate::metrics::Metrics;
use crate::spans::{PendingSpan, SpanSubject};

impl SagaLaneContext {
    /// Counts an input, by its outcome.
    pub(super) fn count(&self, outcome: &str) {
        let in_force = self.definitions.in_force();
        let label = in_force.label(&self.tenant, &self.saga);
        self.rows.around().metrics.transition(label, &self.tenant, outcome);
    }

    /// Records the span of a transition; none for an input that has to be given again.
    pub(super) fn record_span(
        &self,
        begun: Option<PendingSpan>,
        correlation: &CorrelationId,
        decision: &InputDecision,
        item: &QueuedInput,
    ) {
        let fate = &decision.change.fate;
        let (Some(begun), false) =
            (begun, matches!(fate, InputDisposition::Later(_) | InputDisposition::NoRoom))
        else {
            return;
        };
        if let Some(about) = SpanSubject::of(&self.rows, correlation) {
            begun.ended(about, (decision.input(), &decision.change), outcome(fate), item.cause);
        }
    }

    /// Recomputes a transition if it is in the sample that the operator configured, and reports a different result. The first result is
    /// the one that is committed.
    pub(super) fn verify(&self, made: ComputedTransition<'_>) {
        let metrics = &self.rows.around().metrics;
        if metrics.seeing.verify.draw() {
            let correlation = made.whose.correlation;
            match replay::verify_transition(made) {
                Ok(is_compared) => metrics.transitions_verified.inc_by(u64::from(is_compared)),
                Err(difference) => differs(metrics, &self.rows.lane, correlation, &difference),
            }
        }
    }
}

/// Counts and logs a transition that differs when it is recomputed.
fn differs(
    metrics: &Metrics,
    lane: &WorkflowLane,
    correlation: &CorrelationId,
    difference: &ReplayDifference,
) {
    metrics.transitions_verified.inc();
    metrics.replay_differences.inc();
    // A field, which is quoted: a correlation may be any text.
    let correlation = metrics.seeing.correlation(correlation);
    tracing::error!(%lane, ?correlation, "recomputing a transition gave another result: {difference}");
}

/// Returns the name that metrics use for the outcome of an input.
pub(super) const fn outcome(fate: &InputDisposition) -> &'static str {
    match fate {
        InputDisposition::Applied => "applied",
        InputDisposition::Ignored(_) => "ignored",
        InputDisposition::Deferred => "kept",
        InputDisposition::Held(_) => "held",
        InputDisposition::Later(_) => "later",
        InputDisposition::NoRoom => "no_room",
        InputDisposition::DeadLetter(_) => "dead",
        InputDisposition::Refused(_) => "refused",
    }
}

#[cfg(test)]
mod tests {
    use testkit::TestLog;

    use super::*;
    use crate::visibility::SagaVisibility;

    #[test]
    fn a_difference_is_counted_and_logged_with_its_instance_and_revision() {
        let tenant = "acme".parse().expect("a tenant");
        let lane = WorkflowLane::Saga { tenant, saga: "order".parse().expect("a name"), shard: 0 };
        let correlation = "ann@home.test".parse().expect("a correlation");
        let difference = ReplayDifference::Row { revision: 7, what: "the step".to_owned() };
        for (redacts_correlations, shown) in [(false, "ann@home.test"), (true, "eb1f6ceb13c2b316")] {
            let seeing = SagaVisibility { redacts_correlations, ..SagaVisibility::default() };
            let metrics = Metrics::new(&prometheus::Registry::new(), seeing).expect("new names");
            let log = TestLog::of_this_thread();
            differs(&metrics, &lane, &correlation, &difference);
            let line = log.text();
            assert!(line.contains(" ERROR ") && line.contains("lane=s:acme:order:0"), "{line}");
            assert!(line.contains(&format!("correlation=\"{shown}\"")), "{line}");
            assert!(line.contains("revision 7 differs: the step"), "{line}");
            assert_eq!((metrics.replay_differences.get(), metrics.transitions_verified.get()), (1, 1));
        }
    }
}
