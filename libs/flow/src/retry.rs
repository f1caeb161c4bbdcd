//! Retry decisions: whether an unsuccessful attempt is followed by another, and when.
//!
//! A failure uses up the node's retries. A lost attempt is no failure of its script: losses have a budget and a back-off
//! of their own, whether an instance vanished (a death), a machine or a drain ended the attempt. A job that is not
//! idempotent has no such budget. Deaths are bounded for every job: the last one is a quarantine.

use std::time::Duration;

use model::limits::{DEATH_WAIT_SECS, DEATHS_MAX};
use model::{BackoffPolicy, FlowNode, NodePolicy, ReasonCode};

/// Attempts of a generation that did not succeed, by what they count as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetryCounters {
    /// Failures, which count against `retries`.
    pub tries: u32,
    /// Attempts whose instance vanished.
    pub deaths: u32,
    /// Attempts that ended with their supervisor or with a drain.
    pub losses: u32,
}

impl RetryCounters {
    /// Reads the counters of a node.
    #[must_use]
    pub const fn of(node: &FlowNode) -> Self {
        Self { tries: node.tries, deaths: node.deaths, losses: node.losses }
    }

    /// All of them together.
    #[must_use]
    pub const fn sum(self) -> u32 {
        self.tries.saturating_add(self.lost())
    }

    /// Lost attempts, which count against `losses`.
    #[must_use]
    pub const fn lost(self) -> u32 {
        self.deaths.saturating_add(self.losses)
    }
}

/// How an attempt ended that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptFailure {
    /// The reason that the node would fail with.
    pub reason: ReasonCode,
    /// The script's exit code, when there was one.
    pub exit_code: Option<i32>,
    /// The instance vanished, whatever reason the attempt is closed with.
    pub died: bool,
}

impl AttemptFailure {
    /// Returns true if the failure counts as a death.
    const fn is_death(self) -> bool {
        self.died || matches!(self.reason, ReasonCode::InstanceLost)
    }

    /// The reason code that names what the attempt was lost with; none when it was not lost.
    #[must_use]
    pub const fn lost_with(self) -> Option<ReasonCode> {
        match self.reason {
            ReasonCode::SupervisorLost | ReasonCode::Drained => Some(self.reason),
            _ if self.is_death() => Some(ReasonCode::InstanceLost),
            _ => None,
        }
    }
}

/// Decision after an unsuccessful attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryVerdict {
    /// Another attempt after this wait.
    Again(Duration),
    /// The node fails for the reason of this attempt.
    GiveUp,
    /// The node fails as QUARANTINED.
    Quarantine,
}

/// Decides what follows an attempt that did not succeed, and counts it. `spent` has the counts before it; `jitter` is
/// drawn from 0.0..1.0.
///
/// An attempt that was closed for a time limit counts as a failure, and as a death too when its instance vanished:
/// otherwise a short limit would hide every death from the quarantine.
#[must_use]
pub fn after(
    policy: &NodePolicy,
    spent: RetryCounters,
    setback: AttemptFailure,
    jitter: f64,
) -> (RetryVerdict, RetryCounters) {
    let mut counted = spent;
    let lost = setback.lost_with();
    match lost {
        Some(ReasonCode::InstanceLost) => counted.deaths += 1,
        Some(_) => counted.losses += 1,
        None => {}
    }
    let used_up = lost.is_some() && counted.lost() > policy.losses_allowed();
    let (last, wait) = if lost == Some(setback.reason) {
        (used_up, policy.loss_backoff.delay(spent.lost(), jitter))
    } else {
        let forbidden = setback.exit_code.is_some_and(|code| policy.no_retry_exit_codes.contains(&code));
        let last = used_up || spent.tries >= policy.retries || forbidden || is_lasting(setback.reason);
        counted.tries += u32::from(!last);
        (last, policy.backoff.delay(spent.tries, jitter))
    };
    let died = setback.is_death();
    let verdict = if died && counted.deaths >= DEATHS_MAX {
        RetryVerdict::Quarantine
    } else if last {
        RetryVerdict::GiveUp
    } else if died && counted.deaths > 1 {
        RetryVerdict::Again(wait.max(Duration::from_secs(u64::from(DEATH_WAIT_SECS))))
    } else {
        RetryVerdict::Again(wait)
    };
    (verdict, counted)
}

/// Describes how much of the budget for losses a lost attempt has used up, and what follows: `spent` includes it. Returns
/// `None` for an attempt that was not lost.
#[must_use]
pub fn describe(policy: &NodePolicy, spent: RetryCounters, setback: AttemptFailure) -> Option<String> {
    setback.lost_with()?;
    let mut text = String::new();
    let died = setback.is_death();
    if died {
        text = format!("death {} of {DEATHS_MAX}, ", spent.deaths);
    }
    let (lost, allowed) = (spent.lost(), policy.losses_allowed());
    text += &match (policy.idempotent, lost <= allowed) {
        (false, _) => {
            "not run again: it may have done its work, and the job says `idempotent: false`".to_owned()
        }
        (true, true) => format!("loss {lost} of {allowed}"),
        (true, false) => format!("loss {lost}, and the job allows {allowed} (`losses`)"),
    };
    if died && lost <= allowed && (2..DEATHS_MAX).contains(&spent.deaths) {
        text += &format!(", waits for death_wait_secs ({DEATH_WAIT_SECS} s) at least");
    }
    Some(text)
}

/// The wait after a refusal that does not count as a try; `refusals` are those before it. It ignores the node's own
/// back-off, which may be zero: retries at a full queue would then never pause.
#[must_use]
pub fn after_refusal(refusals: u32, jitter: f64) -> Duration {
    BackoffPolicy::default().delay(refusals, jitter)
}

/// Returns true for reasons that depend only on the node and its inputs: another attempt would end the same way.
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
    use model::limits::LOSSES_DEFAULT;

    use super::*;

    const fn setback(exit_code: Option<i32>, reason: ReasonCode) -> AttemptFailure {
        AttemptFailure { reason, exit_code, died: false }
    }

    const fn again(millis: u64) -> RetryVerdict {
        RetryVerdict::Again(Duration::from_millis(millis))
    }

    #[test]
    fn tries_codes_and_reasons_decide() {
        let policy = NodePolicy { retries: 2, no_retry_exit_codes: vec![64], ..NodePolicy::default() };
        let cases = [
            (0, Some(1), ReasonCode::ExitCode, again(500), 1),
            (1, Some(1), ReasonCode::ExitCode, again(1000), 2),
            (2, Some(1), ReasonCode::ExitCode, RetryVerdict::GiveUp, 2),
            (0, Some(64), ReasonCode::ExitCode, RetryVerdict::GiveUp, 0),
            (0, None, ReasonCode::EnvTooLarge, RetryVerdict::GiveUp, 0),
        ];
        for (tries, code, reason, verdict, counted) in cases {
            let spent = RetryCounters { tries, ..RetryCounters::default() };
            let expected = (verdict, RetryCounters { tries: counted, ..spent });
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
            let mut spent = RetryCounters::default();
            let mut verdicts = Vec::new();
            for _ in 0..DEATHS_MAX {
                let (verdict, counted) = after(policy, spent, setback(None, ReasonCode::InstanceLost), 0.5);
                verdicts.push(verdict);
                spent = counted;
            }
            assert_eq!(verdicts, [again(500), again(30_000), RetryVerdict::Quarantine]);
            assert_eq!(spent, RetryCounters { deaths: 3, ..RetryCounters::default() });

            for reason in [ReasonCode::SupervisorLost, ReasonCode::Drained] {
                let mut spent = RetryCounters::default();
                let mut verdicts = Vec::new();
                for _ in 0..=LOSSES_DEFAULT {
                    let (verdict, counted) = after(policy, spent, setback(None, reason), 0.5);
                    verdicts.push(verdict);
                    spent = counted;
                }
                assert_eq!(verdicts, [again(500), again(1000), again(2000), RetryVerdict::GiveUp]);
                assert_eq!(spent, RetryCounters { losses: 4, ..RetryCounters::default() });
            }
        }
    }

    #[test]
    fn losses_of_every_kind_share_the_budget_that_the_job_names() {
        let policy = NodePolicy { losses: 2, retries: 9, ..NodePolicy::default() };
        let cases = [
            (ReasonCode::InstanceLost, again(500), "death 1 of 3, loss 1 of 2"),
            (ReasonCode::Drained, again(1000), "loss 2 of 2"),
            (
                ReasonCode::InstanceLost,
                RetryVerdict::GiveUp,
                "death 2 of 3, loss 3, and the job allows 2 (`losses`)",
            ),
        ];
        let mut spent = RetryCounters { tries: 5, ..RetryCounters::default() };
        for (reason, expected, description) in cases {
            let setback = setback(None, reason);
            let (verdict, counted) = after(&policy, spent, setback, 0.5);
            assert_eq!(
                (verdict, describe(&policy, counted, setback).as_deref()),
                (expected, Some(description))
            );
            spent = counted;
        }
        assert_eq!(spent, RetryCounters { tries: 5, deaths: 2, losses: 1 });
    }

    #[test]
    fn a_job_that_is_not_idempotent_is_not_run_again_after_a_loss() {
        let policy = NodePolicy { idempotent: false, retries: 9, losses: 9, ..NodePolicy::default() };
        for reason in [ReasonCode::InstanceLost, ReasonCode::SupervisorLost, ReasonCode::Drained] {
            let setback = setback(None, reason);
            let (verdict, counted) = after(&policy, RetryCounters::default(), setback, 0.5);
            assert_eq!((verdict, counted.lost(), counted.tries), (RetryVerdict::GiveUp, 1, 0), "{reason:?}");
            let description = describe(&policy, counted, setback).unwrap_or_default();
            assert!(
                description.contains("`idempotent: false`") && !description.contains("waits"),
                "{description}"
            );
        }
        let expired = AttemptFailure { reason: ReasonCode::TimeoutResult, exit_code: None, died: true };
        assert_eq!(after(&policy, RetryCounters::default(), expired, 0.5).0, RetryVerdict::GiveUp);
        let failed = setback(Some(1), ReasonCode::ExitCode);
        assert_eq!(after(&policy, RetryCounters::default(), failed, 0.5).0, again(500), "its retries stand");
    }

    #[test]
    fn a_longer_back_off_than_the_wait_after_deaths_stays() {
        let backoff = BackoffPolicy { initial_secs: 600.0, multiplier: 1.0, max_secs: 600.0 };
        let policy = NodePolicy { loss_backoff: backoff, ..NodePolicy::default() };
        let spent = RetryCounters { tries: 9, deaths: 1, losses: 0 };
        let (verdict, _) = after(&policy, spent, setback(None, ReasonCode::InstanceLost), 0.5);
        assert_eq!(verdict, again(300_000));
    }

    #[test]
    fn a_time_limit_hides_no_death() {
        let policy = NodePolicy { retries: 100, ..NodePolicy::default() };
        let timeout = AttemptFailure { reason: ReasonCode::TimeoutResult, exit_code: None, died: true };
        let spent = RetryCounters { tries: 1, deaths: 1, losses: 0 };
        let (verdict, counted) = after(&policy, spent, timeout, 0.5);
        assert_eq!((verdict, counted), (again(30_000), RetryCounters { tries: 2, deaths: 2, losses: 0 }));
        let (verdict, counted) = after(&policy, counted, timeout, 0.5);
        assert_eq!((verdict, counted.deaths), (RetryVerdict::Quarantine, 3));
    }

    #[test]
    fn refusals_wait_longer_and_longer() {
        assert_eq!(after_refusal(0, 0.5), Duration::from_millis(500));
        assert_eq!(after_refusal(100, 1.0), Duration::from_secs(60));
    }
}
