//! The tables of legal state changes, of sagas and of calls. Nothing else changes a state.

use std::fmt;

use model::{EffectState, SagaStatus};

/// Event that changes the status of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SagaEvent {
    /// The instance begins.
    Start,
    /// A step succeeded, an event matched, or a timer fired, and there is a step to go to.
    Advance,
    /// Everything is done.
    Complete,
    /// The instance ends as its definition specifies, without having reached its goal.
    Fail,
    /// The work is to be undone: a step failed, or the instance was cancelled before its pivot had succeeded.
    Compensate,
    /// A compensation is done, and more are left.
    Undo,
    /// The last compensation is done.
    Undone,
    /// A step after the pivot or a compensation failed permanently, which must not happen.
    Stick,
    /// An operator retried or skipped the step that is stuck.
    Mend,
    /// An operator retried or skipped the stuck step while the instance was compensating.
    MendUndoing,
    /// Inputs wait from now on.
    Pause,
    /// Inputs that waited are applied.
    Resume,
    /// The instance is ended where it stands; nothing is undone.
    Kill,
}

impl SagaEvent {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Start,
        Self::Advance,
        Self::Complete,
        Self::Fail,
        Self::Compensate,
        Self::Undo,
        Self::Undone,
        Self::Stick,
        Self::Mend,
        Self::MendUndoing,
        Self::Pause,
        Self::Resume,
        Self::Kill,
    ];

    /// The name in `specs/`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Advance => "advance",
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::Compensate => "compensate",
            Self::Undo => "undo",
            Self::Undone => "undone",
            Self::Stick => "stick",
            Self::Mend => "mend",
            Self::MendUndoing => "mend_undoing",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Kill => "kill",
        }
    }
}

impl fmt::Display for SagaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Event that changes the state of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EffectEvent {
    /// The command of the call came for the first time.
    Accept,
    /// The intent to make the call is committed.
    Call,
    /// The call succeeded.
    Succeed,
    /// The call failed permanently.
    Fail,
    /// The call failed for a temporary reason, or certainly never happened, and may be made again.
    Retry,
    /// The answer comes later, by another way.
    Wait,
    /// The call may have happened: no answer came, or the caller died.
    Lose,
    /// Only a person can decide whether the call happened.
    Defer,
    /// One of its timeouts has passed.
    TimeOut,
    /// The saga no longer wants the call.
    Cancel,
}

impl EffectEvent {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Accept,
        Self::Call,
        Self::Succeed,
        Self::Fail,
        Self::Retry,
        Self::Wait,
        Self::Lose,
        Self::Defer,
        Self::TimeOut,
        Self::Cancel,
    ];

    /// The name in `specs/`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Call => "call",
            Self::Succeed => "succeed",
            Self::Fail => "fail",
            Self::Retry => "retry",
            Self::Wait => "wait",
            Self::Lose => "lose",
            Self::Defer => "defer",
            Self::TimeOut => "time_out",
            Self::Cancel => "cancel",
        }
    }
}

impl fmt::Display for EffectEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Something happened that cannot happen in this state. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImpossibleTransition {
    /// To an instance.
    #[error("`{event}` cannot happen to a saga that is {}", status_of(*status))]
    Saga {
        /// Where it stands; nothing when there is none.
        status: Option<SagaStatus>,
        /// Event that was refused.
        event: SagaEvent,
    },
    /// To a call.
    #[error("`{event}` cannot happen to a call that is {}", state_of(*state))]
    Effect {
        /// Where it stands; nothing when there is none.
        state: Option<EffectState>,
        /// Event that was refused.
        event: EffectEvent,
    },
}

/// How the tables write the absence of an instance or a call.
const NONE: &str = "none";

fn status_of(status: Option<SagaStatus>) -> &'static str {
    status.map_or(NONE, SagaStatus::as_str)
}

fn state_of(state: Option<EffectState>) -> &'static str {
    state.map_or(NONE, EffectState::as_str)
}

/// Where an instance in `status` goes when `event` happens; nothing stands for one that is not there.
///
/// # Errors
/// The pair is not in the table.
pub const fn saga(status: Option<SagaStatus>, event: SagaEvent) -> Result<SagaStatus, ImpossibleTransition> {
    use SagaEvent as E;
    use SagaStatus as S;
    let Some(from) = status else {
        return match event {
            E::Start => Ok(S::Running),
            event => Err(ImpossibleTransition::Saga { status, event }),
        };
    };
    Ok(match (from, event) {
        (S::Running, E::Advance) | (S::Stuck, E::Mend) => S::Running,
        (S::Running | S::Stuck, E::Complete) => S::Completed,
        (S::Running, E::Fail) => S::Failed,
        (S::Running, E::Compensate) | (S::Compensating, E::Undo) | (S::Stuck, E::MendUndoing) => {
            S::Compensating
        }
        (S::Compensating, E::Undone) => S::Compensated,
        (S::Running | S::Compensating, E::Stick) => S::Stuck,
        (S::Running | S::Compensating, E::Pause | E::Resume) => from,
        (S::Running | S::Compensating | S::Stuck, E::Kill) => S::Killed,
        _ => return Err(ImpossibleTransition::Saga { status, event }),
    })
}

/// Where a call in `state` goes when `event` happens; nothing stands for one that is not there.
///
/// # Errors
/// The pair is not in the table.
pub const fn effect(
    state: Option<EffectState>,
    event: EffectEvent,
) -> Result<EffectState, ImpossibleTransition> {
    use EffectEvent as E;
    use EffectState as S;
    let Some(from) = state else {
        return match event {
            E::Accept => Ok(S::Accepted),
            event => Err(ImpossibleTransition::Effect { state, event }),
        };
    };
    Ok(match (from, event) {
        (S::Accepted | S::Backoff, E::Call) => S::Calling,
        (S::Calling | S::Waiting | S::Unknown | S::Manual, E::Succeed) => S::Succeeded,
        (S::Calling | S::Waiting | S::Unknown | S::Manual, E::Fail) => S::Failed,
        (S::Calling | S::Unknown | S::Manual, E::Retry) => S::Backoff,
        (S::Calling | S::Unknown, E::Wait) => S::Waiting,
        (S::Calling | S::Waiting, E::Lose) => S::Unknown,
        (S::Unknown, E::Defer) => S::Manual,
        (S::Accepted | S::Backoff | S::Waiting | S::Unknown | S::Manual, E::TimeOut) => S::TimedOut,
        (S::Accepted | S::Backoff | S::Waiting, E::Cancel) => S::Cancelled,
        _ => return Err(ImpossibleTransition::Effect { state, event }),
    })
}

/// Every legal change of an instance, as `specs/` writes it.
pub fn saga_table() -> impl Iterator<Item = [&'static str; 3]> {
    let states = std::iter::once(None).chain(SagaStatus::ALL.map(Some));
    states.flat_map(|from| {
        let row =
            move |event: SagaEvent| Some([status_of(from), event.as_str(), saga(from, event).ok()?.as_str()]);
        SagaEvent::ALL.into_iter().filter_map(row)
    })
}

/// Every legal change of a call, as `specs/` writes it.
pub fn effect_table() -> impl Iterator<Item = [&'static str; 3]> {
    let states = std::iter::once(None).chain(EffectState::ALL.map(Some));
    states.flat_map(|from| {
        let row = move |event: EffectEvent| {
            Some([state_of(from), event.as_str(), effect(from, event).ok()?.as_str()])
        };
        EffectEvent::ALL.into_iter().filter_map(row)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_has_ended_is_never_left() {
        for status in SagaStatus::ALL {
            let leaves = SagaEvent::ALL.into_iter().any(|event| saga(Some(status), event).is_ok());
            assert_eq!(leaves, !status.is_end(), "{status}");
        }
        for state in EffectState::ALL {
            let leaves = EffectEvent::ALL.into_iter().any(|event| effect(Some(state), event).is_ok());
            assert_eq!(leaves, !state.is_end(), "{state}");
        }
    }

    #[test]
    fn every_state_can_be_reached_and_every_event_happens() {
        let reached: BTreeSet<_> = saga_table().map(|[_, _, to]| to).collect();
        assert_eq!(reached, SagaStatus::ALL.map(SagaStatus::as_str).into());
        let reached: BTreeSet<_> = effect_table().map(|[_, _, to]| to).collect();
        assert_eq!(reached, EffectState::ALL.map(EffectState::as_str).into());
        let happens: BTreeSet<_> = saga_table().map(|[_, event, _]| event).collect();
        assert_eq!(happens, SagaEvent::ALL.map(SagaEvent::as_str).into());
        let happens: BTreeSet<_> = effect_table().map(|[_, event, _]| event).collect();
        assert_eq!(happens, EffectEvent::ALL.map(EffectEvent::as_str).into());
    }

    #[test]
    fn a_call_is_made_only_after_it_was_noted_and_never_after_its_outcome() {
        for state in EffectState::ALL {
            let may = effect(Some(state), EffectEvent::Call).is_ok();
            assert_eq!(may, matches!(state, EffectState::Accepted | EffectState::Backoff), "{state}");
        }
        // A call in progress can only end by a known outcome, or by an unknown one.
        for event in [EffectEvent::Cancel, EffectEvent::TimeOut] {
            let refused = effect(Some(EffectState::Calling), event).expect_err("it may have happened");
            assert_eq!(refused.to_string(), format!("`{event}` cannot happen to a call that is calling"));
        }
    }

    #[test]
    fn nothing_but_a_start_happens_to_what_is_not_there() {
        for event in SagaEvent::ALL {
            assert_eq!(saga(None, event).is_ok(), event == SagaEvent::Start, "{event}");
        }
        let refused = saga(None, SagaEvent::Kill).expect_err("there is none").to_string();
        assert_eq!(refused, "`kill` cannot happen to a saga that is none");
        for event in EffectEvent::ALL {
            assert_eq!(effect(None, event).is_ok(), event == EffectEvent::Accept, "{event}");
        }
    }
}
