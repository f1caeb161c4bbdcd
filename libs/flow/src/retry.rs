//! Whether a failed try is followed by another, and when.

use std::time::Duration;

use model::{Backoff, NodePolicy, ReasonCode};

/// What follows a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another try after this wait.
    Again(Duration),
    /// The node fails.
    GiveUp,
}

/// Decides after a try that failed, timed out or was lost. `tries` are those
/// counted before it; `jitter` is drawn from 0.0..1.0.
#[must_use]
pub fn after_failure(
    policy: &NodePolicy,
    tries: u32,
    exit_code: Option<i32>,
    reason: ReasonCode,
    jitter: f64,
) -> Verdict {
    let forbidden = exit_code.is_some_and(|code| policy.no_retry_exit_codes.contains(&code));
    if tries >= policy.retries || forbidden || is_lasting(reason) {
        Verdict::GiveUp
    } else {
        Verdict::Again(policy.backoff.delay(tries, jitter))
    }
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

    #[test]
    fn tries_codes_and_reasons_decide() {
        let policy = NodePolicy { retries: 2, no_retry_exit_codes: vec![64], ..NodePolicy::default() };
        let again = |secs| Verdict::Again(Duration::from_secs_f64(secs));
        let cases = [
            (0, Some(1), ReasonCode::ExitCode, again(0.5)),
            (1, Some(1), ReasonCode::ExitCode, again(1.0)),
            (2, Some(1), ReasonCode::ExitCode, Verdict::GiveUp),
            (0, Some(64), ReasonCode::ExitCode, Verdict::GiveUp),
            (0, None, ReasonCode::InstanceLost, again(0.5)),
            (0, None, ReasonCode::EnvTooLarge, Verdict::GiveUp),
        ];
        for (tries, code, reason, expected) in cases {
            assert_eq!(
                after_failure(&policy, tries, code, reason, 0.5),
                expected,
                "{tries} {code:?} {reason:?}"
            );
        }
    }

    #[test]
    fn refusals_wait_longer_and_longer() {
        assert_eq!(after_refusal(0, 0.5), Duration::from_millis(500));
        assert_eq!(after_refusal(100, 1.0), Duration::from_secs(60));
    }
}
