//! What operators are told of transitions: counts, spans, and whether they come to the same once more.

use model::CorrelationId;
use workflow::Lane;
use workflow::replay::{self, Difference, Made};
use workflow::step::Fate;

use super::work::Decision;
use super::{Item, Shared};
use crate::metrics::Metrics;
use crate::spans::{About, Begun};

impl Shared {
    /// Counts an input, by what became of it.
    pub(super) fn count(&self, outcome: &str) {
        let in_force = self.definitions.in_force();
        let label = in_force.label(&self.tenant, &self.saga);
        self.rows.around().metrics.transition(label, &self.tenant, outcome);
    }

    /// Tells a collector of a transition; nothing of what is to be given again.
    pub(super) fn tell(
        &self,
        begun: Option<Begun>,
        correlation: &CorrelationId,
        decision: &Decision,
        item: &Item,
    ) {
        let fate = &decision.change.fate;
        let (Some(begun), false) = (begun, matches!(fate, Fate::Later(_) | Fate::NoRoom)) else { return };
        if let Some(about) = About::of(&self.rows, correlation) {
            begun.ended(about, (decision.input(), &decision.change), outcome(fate), item.cause);
        }
    }

    /// Makes a transition once more where it is among those of which the operator wants that, and tells if it comes to something
    /// else. What was made first is what is committed.
    pub(super) fn verify(&self, made: Made<'_>) {
        let metrics = &self.rows.around().metrics;
        if metrics.seeing.verify.draw() {
            let correlation = made.whose.correlation;
            match replay::again(made) {
                Ok(is_compared) => metrics.transitions_verified.inc_by(u64::from(is_compared)),
                Err(difference) => differs(metrics, &self.rows.lane, correlation, &difference),
            }
        }
    }
}

/// Counts a transition that is another one when it is made again, and says which.
fn differs(metrics: &Metrics, lane: &Lane, correlation: &CorrelationId, difference: &Difference) {
    metrics.transitions_verified.inc();
    metrics.replay_differences.inc();
    // A field, which is quoted: it is any text.
    let correlation = metrics.seeing.correlation(correlation);
    tracing::error!(%lane, ?correlation, "a transition is another one when it is made again: {difference}");
}

/// What became of an input, for metrics.
pub(super) const fn outcome(fate: &Fate) -> &'static str {
    match fate {
        Fate::Applied => "applied",
        Fate::Ignored(_) => "ignored",
        Fate::Kept => "kept",
        Fate::Held(_) => "held",
        Fate::Later(_) => "later",
        Fate::NoRoom => "no_room",
        Fate::Dead(_) => "dead",
        Fate::Refused(_) => "refused",
    }
}

#[cfg(test)]
mod tests {
    use testkit::Log;

    use super::*;
    use crate::seeing::Seeing;

    #[test]
    fn a_difference_is_counted_and_told_with_its_instance_and_revision() {
        let tenant = "acme".parse().expect("a tenant");
        let lane = Lane::Saga { tenant, saga: "order".parse().expect("a name"), shard: 0 };
        let correlation = "ann@home.test".parse().expect("a correlation");
        let difference = Difference::Row { revision: 7, what: "the step".to_owned() };
        for (redacts_correlations, shown) in [(false, "ann@home.test"), (true, "eb1f6ceb13c2b316")] {
            let seeing = Seeing { redacts_correlations, ..Seeing::default() };
            let metrics = Metrics::new(&prometheus::Registry::new(), seeing).expect("new names");
            let log = Log::of_this_thread();
            differs(&metrics, &lane, &correlation, &difference);
            let line = log.text();
            assert!(line.contains(" ERROR ") && line.contains("lane=s:acme:order:0"), "{line}");
            assert!(line.contains(&format!("correlation=\"{shown}\"")), "{line}");
            assert!(line.contains("revision 7 differs: the step"), "{line}");
            assert_eq!((metrics.replay_differences.get(), metrics.transitions_verified.get()), (1, 1));
        }
    }
}
