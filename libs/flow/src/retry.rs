//! Whether an attempt that did not succeed is followed by another, and when.
//!
//! A failure uses up the node's retries. An attempt that was lost is no failure of its script: it has a budget of its
//! own, one for instances that vanished (deaths) and one for machines and drains (losses).

use std::time::Duration;

use model::limits::{DEATH_WAIT_SECS, DEATHS_MAX, LOSSES_MAX};
use model::{Backoff, FlowNode, NodePolicy, ReasonCode};

/// Attempts of a generation that did not succeed, by what they count as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Failures, which count against `retries`.
    pub tries: u32,
    /// Attempts whose instance vanished.
    pub deaths: u32,
    /// Attempts that ended with their supervisor or with a drain.
    pub losses: u32,
}

impl Spent {
    /// Reads the counters of a node.
    #[must_use]
    pub const fn of(node: &FlowNode) -> Self {
        Self { tries: node.tries, deaths: node.deaths, losses: node.losses }
    }

    /// All of them together.
    #[must_use]
    pub const fn sum(self) -> u32 {
        self.tries.saturating_add(self.deaths).saturating_add(self.losses)
    }
}

/// How an attempt ended that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setback {
    /// The reason that the node would fail with.
    pub reason: ReasonCode,
    /// The script's exit code, when there was one.
    pub exit_code: Option<i32>,
    /// The instance vanished, whatever the attempt is closed for.
    pub died: bool,
}

impl Setback {
    /// Whether it counts as a death.
    const fn is_death(self) -> bool {
        self.died || matches!(self.reason, ReasonCode::InstanceLost)
    }

    /// Whether it counts as a loss.
    const fn is_loss(self) -> bool {
        matches!(self.reason, ReasonCode::SupervisorLost | ReasonCode::Drained)
    }
}

/// What follows an attempt that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another attempt after this wait.
    Again(Duration),
    /// The node fails for the reason of this attempt.
    GiveUp,
    /// The node fails as QUARANTINED.
    Quarantine,
}

/// Decides what follows an attempt that did not succeed, and counts it. `spent` is what was counted before it;
/// `jitter` is drawn from 0.0..1.0.
///
/// An attempt that was closed for a time limit counts as a failure, and as a death too when its instance vanished:
/// otherwise a short limit would hide every death from the quarantine.
#[must_use]
pub fn after(policy: &NodePolicy, spent: Spent, setback: Setback, jitter: f64) -> (Verdict, Spent) {
    let mut counted = spent;
    let died = setback.is_death();
    counted.deaths += u32::from(died);
    let (last, wait) = match setback.reason {
        ReasonCode::InstanceLost => (false, policy.backoff.delay(spent.sum(), jitter)),
        _ if setback.is_loss() => {
            counted.losses += 1;
            (counted.losses >= LOSSES_MAX, policy.backoff.delay(spent.sum(), jitter))
        }
        reason => {
            let forbidden = setback.exit_code.is_some_and(|code| policy.no_retry_exit_codes.contains(&code));
            let last = spent.tries >= policy.retries || forbidden || is_lasting(reason);
            counted.tries += u32::from(!last);
            (last, policy.backoff.delay(spent.tries, jitter))
        }
    };
    let verdict = if died && counted.deaths >= DEATHS_MAX {
        Verdict::Quarantine
    } else if last {
        Verdict::GiveUp
    } else if died && counted.deaths > 1 {
        Verdict::Again(wait.max(Duration::from_secs(u64::from(DEATH_WAIT_SECS))))
    } else {
        Verdict::Again(wait)
    };
    (verdict, counted)
}

/// Says how much of its budget a lost attempt has used up, and what it waits for; nothing when no budget is touched.
#[must_use]
pub fn describe(spent: Spent, setback: Setback) -> Option<String> {
    if setback.is_death() {
        let mut text = format!("death {} of {DEATHS_MAX}", spent.deaths);
        if (2..DEATHS_MAX).contains(&spent.deaths) {
            text.push_str(&format!(", waits for death_wait_secs ({DEATH_WAIT_SECS} s) at least"));
        }
        return Some(text);
    }
    setback.is_loss().then(|| format!("loss {} of {LOSSES_MAX}", spent.losses))
}

/// The wait after a refusal that does not count as a try; `refusals` are those
/// before it. It does not follow the node's own back-off, which may be zero:
/// a full queue would be asked without a pause.
#[must_use]
pub fn after_refusal(refusals: u32, jitter: f64) -> Duration {
    Backoff::default().delay(refusals, jitter)
}

/// What depends only on what the node is and was given: it would end so again.
const fn is_lasting(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::MissingResult
            | ReasonCode::EnvTooLarge
            | ReasonCode::InputsTooLarge
            | ReasonCode::ResultTooLarge
            | ReasonCode::NetworkRefused
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn setback(exit_code: Option<i32>, reason: ReasonCode) -> Setback {
        Setback { reason, exit_code, died: false }
    }

    const fn again(millis: u64) -> Verdict {
        Verdict::Again(Duration::from_millis(millis))
    }

    #[test]
    fn tries_codes_and_reasons_decide() {
        let policy = NodePolicy { retries: 2, no_retry_exit_codes: vec![64], ..NodePolicy::default() };
        let cases = [
            (0, Some(1), ReasonCode::ExitCode, again(500), 1),
            (1, Some(1), ReasonCode::ExitCode, again(1000), 2),
            (2, Some(1), ReasonCode::ExitCode, Verdict::GiveUp, 2),
            (0, Some(64), ReasonCode::ExitCode, Verdict::GiveUp, 0),
            (0, None, ReasonCode::EnvTooLarge, Verdict::GiveUp, 0),
        ];
        for (tries, code, reason, verdict, counted) in cases {
            let spent = Spent { tries, ..Spent::default() };
            let expected = (verdict, Spent { tries: counted, ..spent });
            assert_eq!(
                after(&policy, spent, setback(code, reason), 0.5),
                expected,
                "{tries} {code:?} {reason:?}"
            );
        }
    }

    #[test]
    fn deaths_and_losses_have_budgets_of_their_own() {
        let none = NodePolicy::default();
        let many = NodePolicy { retries: 100, ..NodePolicy::default() };
        for policy in [&none, &many] {
            let mut spent = Spent::default();
            let mut verdicts = Vec::new();
            for _ in 0..DEATHS_MAX {
                let (verdict, counted) = after(policy, spent, setback(None, ReasonCode::InstanceLost), 0.5);
                verdicts.push(verdict);
                spent = counted;
            }
            assert_eq!(verdicts, [again(500), again(30_000), Verdict::Quarantine]);
            assert_eq!(spent, Spent { deaths: 3, ..Spent::default() });

            for reason in [ReasonCode::SupervisorLost, ReasonCode::Drained] {
                let mut spent = Spent::default();
                let mut verdicts = Vec::new();
                for _ in 0..LOSSES_MAX {
                    let (verdict, counted) = after(policy, spent, setback(None, reason), 0.5);
                    verdicts.push(verdict);
                    spent = counted;
                }
                assert_eq!(verdicts, [again(500), again(1000), again(2000), again(4000), Verdict::GiveUp]);
                assert_eq!(spent, Spent { losses: 5, ..Spent::default() });
            }
        }
    }

    #[test]
    fn a_longer_back_off_than_the_wait_after_deaths_stays() {
        let backoff = Backoff { initial_secs: 600.0, multiplier: 1.0, max_secs: 600.0 };
        let policy = NodePolicy { backoff, ..NodePolicy::default() };
        let spent = Spent { deaths: 1, ..Spent::default() };
        let (verdict, _) = after(&policy, spent, setback(None, ReasonCode::InstanceLost), 0.5);
        assert_eq!(verdict, again(300_000));
    }

    #[test]
    fn a_time_limit_hides_no_death() {
        let policy = NodePolicy { retries: 100, ..NodePolicy::default() };
        let timeout = Setback { reason: ReasonCode::TimeoutResult, exit_code: None, died: true };
        let spent = Spent { tries: 1, deaths: 1, losses: 0 };
        let (verdict, counted) = after(&policy, spent, timeout, 0.5);
        assert_eq!((verdict, counted), (again(30_000), Spent { tries: 2, deaths: 2, losses: 0 }));
        let (verdict, counted) = after(&policy, counted, timeout, 0.5);
        assert_eq!((verdict, counted.deaths), (Verdict::Quarantine, 3));
    }

    #[test]
    fn refusals_wait_longer_and_longer() {
        assert_eq!(after_refusal(0, 0.5), Duration::from_millis(500));
        assert_eq!(after_refusal(100, 1.0), Duration::from_secs(60));
    }
}
