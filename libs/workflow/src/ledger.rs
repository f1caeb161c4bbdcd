//! The ledger of effects: the known state of each call, before it is made and after.
//!
//! The attempt is committed before the call is made, and its outcome afterwards together with the result. If the process
//! dies between the two, the call may have been made, and the effect's policy for unknown outcomes applies.

mod requests;

use std::time::Duration;

use model::{BlobHash, CommandId, EffectState, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Json;
use crate::input::{CALL_BYTES_MAX, CommandOutcome};
use crate::instance::{cut, is_false};
use crate::message::{EffectCommand, EffectResult, ResultRecipient};
use crate::provider::{CallRetryPolicy, Effect, UnknownOutcomePolicy};
use crate::transition::{self, EffectEvent, ImpossibleTransition};

/// Maximum number of signs of life that are noted within one heartbeat.
const BEATS_NOTED: u32 = 4;

/// End code of a call whose result is too large to be stored.
const TOO_LARGE: &str = "result_too_large";

/// A call, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRow {
    /// The command that ordered it.
    pub command: CommandId,
    /// Recipient of the result.
    pub reply_to: ResultRecipient,
    /// Input of the call.
    pub input: Json,
    /// Hash of the input: one command has one payload.
    pub input_hash: BlobHash,
    /// Metadata of the command.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub metadata: std::collections::BTreeMap<String, String>,
    /// Where it stands.
    pub state: EffectState,
    /// When its command was taken.
    pub accepted: Timestamp,
    /// Calls that were made, or were about to be.
    pub attempts: u32,
    /// The epoch in which the last of them was about to be made.
    pub epoch: u64,
    /// When something is to be done about it.
    pub due: Timestamp,
    /// When it last showed that it lives, while its answer is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<Timestamp>,
    /// Hash of the token that completes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<BlobHash>,
    /// Hashes of the tokens of calls before, which complete it as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_tokens: Vec<BlobHash>,
    /// Name of the call where it runs: the id of a flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// True if the saga no longer wants the call.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_unwanted: bool,
    /// True if an earlier attempt may have taken effect and its outcome is still unknown.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_in_doubt: bool,
    /// Questions about its outcome that had no answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub questions: u32,
    /// Last message about the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// Result of the call, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EffectCallResult>,
}

/// Result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectCallResult {
    /// How it ended.
    pub outcome: CommandOutcome,
    /// True if the call may have taken effect although it did not succeed.
    pub may_have_happened: bool,
    /// Payload that the provider returned.
    pub payload: Json,
    /// When it ended.
    pub at: Timestamp,
}

/// Answer of a provider about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderAnswer {
    /// The call was carried out.
    Succeeded(Json),
    /// The call was not carried out and never will be.
    Failed {
        /// Code by which the saga decides.
        code: String,
        /// Further details of the failure.
        payload: Json,
    },
    /// The call was not carried out, for a temporary reason.
    Passing {
        /// The reason.
        why: String,
        /// Pause before a retry, as the upstream requested.
        after: Option<Duration>,
    },
    /// The call was started, and its answer comes later.
    Waiting {
        /// Name of the call where it runs.
        external: Option<String>,
    },
    /// The call may or may not have been carried out.
    Unknown {
        /// Why.
        why: String,
    },
    /// The call was started and stopped: it did not complete its work.
    Cancelled,
}

impl ProviderAnswer {
    /// Removes the fields that its effect never stores from the answer.
    fn redacted(mut self, effect: &Effect) -> Self {
        if let Self::Succeeded(payload) | Self::Failed { payload, .. } = &mut self {
            effect.redact("result", payload);
        }
        self
    }
}

/// Next action for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallDirective {
    /// The call is to be made.
    Call,
    /// The upstream has to be asked whether the call happened.
    Ask,
    /// The work that runs for the call is to be stopped.
    Stop,
    /// Nothing before its next due time.
    Nothing,
}

impl CallRow {
    /// A call whose command was taken just now.
    #[must_use]
    pub fn accept(command: EffectCommand, now: Timestamp) -> Self {
        let input_hash = BlobHash::of(command.payload.to_string().as_bytes());
        Self {
            command: command.command_id,
            reply_to: command.reply_to,
            input: command.payload,
            input_hash,
            metadata: command.metadata,
            state: EffectState::Accepted,
            accepted: now,
            attempts: 0,
            epoch: 0,
            due: now,
            alive: None,
            token: None,
            former_tokens: Vec::new(),
            external: None,
            is_unwanted: false,
            is_in_doubt: false,
            questions: 0,
            last: None,
            end: None,
        }
    }

    /// Returns whether a command asks for the same thing.
    #[must_use]
    pub fn is_same(&self, command: &EffectCommand) -> bool {
        command.cancel || self.input_hash == BlobHash::of(command.payload.to_string().as_bytes())
    }

    /// Decides what to do now, and ends calls that have timed out.
    ///
    /// # Errors
    /// The table of states has no such change: no program writes such a row.
    pub fn next_directive(
        &mut self,
        effect: &Effect,
        epoch: u64,
        now: Timestamp,
    ) -> Result<CallDirective, ImpossibleTransition> {
        if self.state.is_end() {
            return Ok(CallDirective::Nothing);
        }
        if self.state == EffectState::Calling {
            if self.epoch == epoch {
                return Ok(CallDirective::Nothing);
            }
            // The process that made the call is gone.
            self.record_answer(
                effect,
                ProviderAnswer::Unknown { why: "its process ended".to_owned() },
                0,
                now,
            )?;
        }
        if self.state == EffectState::Unknown {
            self.settle_unknown(effect, now)?;
        }
        if let Some(why) = self.overdue(effect, now) {
            let may_have_happened = self.may_have_happened();
            let runs_elsewhere = self.state == EffectState::Waiting && self.external.is_some();
            if runs_elsewhere && self.is_unwanted && now < self.due {
                return Ok(CallDirective::Nothing);
            }
            if runs_elsewhere && !self.is_unwanted {
                // The running work is stopped first, and its end awaited.
                self.is_unwanted = true;
                self.last = Some(why.to_owned());
                self.due = now + effect.timeouts.start_to_close;
                return Ok(CallDirective::Stop);
            }
            self.happen(EffectEvent::TimeOut)?;
            self.finish(CommandOutcome::TimedOut, may_have_happened, failure("timed_out", why), now);
            return Ok(CallDirective::Nothing);
        }
        if now < self.due {
            return Ok(CallDirective::Nothing);
        }
        Ok(match self.state {
            EffectState::Accepted | EffectState::Backoff if self.is_unwanted => {
                self.cancel_now(now)?;
                CallDirective::Nothing
            }
            EffectState::Accepted | EffectState::Backoff => CallDirective::Call,
            EffectState::Unknown => CallDirective::Ask,
            _ => {
                self.due = self.next_deadline(effect);
                CallDirective::Nothing
            }
        })
    }

    /// Why it took too long.
    fn overdue(&self, effect: &Effect, now: Timestamp) -> Option<&'static str> {
        let times = effect.timeouts;
        let is_over =
            |since: Timestamp, length: Option<Duration>| length.is_some_and(|length| now >= since + length);
        if self.attempts == 0 && is_over(self.accepted, times.schedule_to_start) {
            return Some("it was not begun in time");
        }
        if is_over(self.accepted, Some(times.schedule_to_close)) {
            return Some("it was not done in time");
        }
        let alive = self.alive.filter(|_| self.state == EffectState::Waiting)?;
        is_over(alive, times.heartbeat).then_some("it has shown no life for too long")
    }

    /// Returns the time at which the call times out if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self, effect: &Effect) -> Timestamp {
        let times = effect.timeouts;
        let mut next = self.accepted + times.schedule_to_close;
        if let (0, Some(length)) = (self.attempts, times.schedule_to_start) {
            next = next.min(self.accepted + length);
        }
        if let (EffectState::Waiting, Some(alive), Some(length)) = (self.state, self.alive, times.heartbeat) {
            next = next.min(alive + length);
        }
        next
    }

    /// Returns whether the call may have happened, as far as is known now.
    const fn may_have_happened(&self) -> bool {
        self.is_in_doubt
            || matches!(self.state, EffectState::Unknown | EffectState::Manual | EffectState::Waiting)
    }

    /// Notes that the call is about to be made. Has to be committed before the call.
    ///
    /// # Errors
    /// The call is not due.
    pub fn record_attempt(&mut self, effect: &Effect, epoch: u64) -> Result<(), ImpossibleTransition> {
        self.happen(EffectEvent::Call)?;
        self.attempts += 1;
        self.epoch = epoch;
        self.due = self.next_deadline(effect);
        Ok(())
    }

    /// Records a provider's answer. `share` is a random number that varies the pause before another call.
    ///
    /// # Errors
    /// No answer was awaited.
    pub fn record_answer(
        &mut self,
        effect: &Effect,
        answer: ProviderAnswer,
        share: u32,
        now: Timestamp,
    ) -> Result<(), ImpossibleTransition> {
        let answer = answer.redacted(effect);
        if let Some(why) = self.has_no_room(&answer) {
            // If the call succeeded, its saga cannot continue from a result that is not stored, so the call counts as one
            // that may have happened.
            self.is_in_doubt = matches!(answer, ProviderAnswer::Succeeded(_));
            return self.fail(CommandOutcome::Failed, TOO_LARGE, failure(TOO_LARGE, &why), now);
        }
        match answer {
            ProviderAnswer::Succeeded(payload) => {
                self.happen(EffectEvent::Succeed)?;
                self.finish(CommandOutcome::Succeeded, false, payload, now);
            }
            ProviderAnswer::Failed { code, payload } => {
                // All attempts have one key, so an answer to one holds for all.
                self.is_in_doubt = false;
                self.fail(CommandOutcome::Failed, &code, payload, now)?;
            }
            ProviderAnswer::Cancelled => {
                self.is_in_doubt = false;
                match self.overdue(effect, now).filter(|_| self.is_unwanted) {
                    // It was stopped since it took too long.
                    Some(why) if self.state == EffectState::Waiting => {
                        self.happen(EffectEvent::TimeOut)?;
                        self.finish(CommandOutcome::TimedOut, false, failure("timed_out", why), now);
                    }
                    _ => {
                        let code =
                            if self.is_unwanted { CommandOutcome::Cancelled } else { CommandOutcome::Failed };
                        self.fail(code, "cancelled", Json::object([]), now)?;
                    }
                }
            }
            ProviderAnswer::Passing { why, after } => self.pass(effect, &why, after, share, now)?,
            ProviderAnswer::Waiting { external } => {
                self.happen(EffectEvent::Wait)?;
                self.external = external;
                self.alive = Some(now);
                self.due = self.next_deadline(effect);
            }
            ProviderAnswer::Unknown { why } => {
                let was_waiting = self.state == EffectState::Waiting;
                self.happen(EffectEvent::Lose)?;
                self.is_in_doubt = true;
                self.last = Some(cut(&why));
                self.due = now;
                match &effect.unknown {
                    // The call certainly started, so making it again would be a second one.
                    UnknownOutcomePolicy::Retry | UnknownOutcomePolicy::Query(_) if was_waiting => {
                        self.fail_unknown(now)?
                    }
                    _ => self.settle_unknown(effect, now)?,
                }
            }
        }
        Ok(())
    }

    /// Returns why the row has no room for the answer, if it has none.
    fn has_no_room(&self, answer: &ProviderAnswer) -> Option<String> {
        let (ProviderAnswer::Succeeded(payload) | ProviderAnswer::Failed { payload, .. }) = answer else {
            return None;
        };
        let (input, found) = (self.input.bytes(), payload.bytes());
        let most = CALL_BYTES_MAX.saturating_sub(input);
        (found > most).then(|| {
            format!("the result has {found} bytes, beside an input of {input} it may have {most} at most")
        })
    }

    fn fail(
        &mut self,
        outcome: CommandOutcome,
        code: &str,
        payload: Json,
        now: Timestamp,
    ) -> Result<(), ImpossibleTransition> {
        self.happen(EffectEvent::Fail)?;
        let mut payload = match payload {
            Json::Map(fields) => fields,
            other => [("value".to_owned(), other)].into(),
        };
        payload.entry("code".to_owned()).or_insert_with(|| Json::text(code));
        self.finish(outcome, self.is_in_doubt, Json::Map(payload), now);
        Ok(())
    }

    /// Schedules another attempt, or gives up.
    fn pass(
        &mut self,
        effect: &Effect,
        why: &str,
        after: Option<Duration>,
        share: u32,
        now: Timestamp,
    ) -> Result<(), ImpossibleTransition> {
        self.last = Some(cut(why));
        if self.is_unwanted {
            return self.fail(CommandOutcome::Cancelled, "cancelled", failure("cancelled", why), now);
        }
        let pause = pause(&effect.retry, self.attempts, share).max(after.unwrap_or_default());
        let deadline = self.accepted + effect.timeouts.schedule_to_close;
        if self.attempts >= effect.retry.attempts || now + pause >= deadline {
            let payload = failure("unavailable", why);
            return self.fail(CommandOutcome::Failed, "unavailable", payload, now);
        }
        self.happen(EffectEvent::Retry)?;
        self.due = now + pause;
        Ok(())
    }

    /// Applies the policy for a call with an unknown outcome.
    fn settle_unknown(&mut self, effect: &Effect, now: Timestamp) -> Result<(), ImpossibleTransition> {
        match &effect.unknown {
            // The query is sent when the call is due.
            UnknownOutcomePolicy::Query(_) => Ok(()),
            UnknownOutcomePolicy::Manual => self.happen(EffectEvent::Defer),
            UnknownOutcomePolicy::Retry if self.attempts < effect.retry.attempts.saturating_mul(2) => {
                self.happen(EffectEvent::Retry)?;
                self.due = now;
                Ok(())
            }
            UnknownOutcomePolicy::Retry | UnknownOutcomePolicy::Fail => self.fail_unknown(now),
        }
    }

    /// Ends the call as one that may have happened.
    fn fail_unknown(&mut self, now: Timestamp) -> Result<(), ImpossibleTransition> {
        let why = self.last.clone().unwrap_or_default();
        self.happen(EffectEvent::Fail)?;
        self.finish(CommandOutcome::Unknown, true, failure("unknown", &why), now);
        Ok(())
    }

    /// Records an upstream's answer to the query whether a call happened: `None` when the query failed.
    ///
    /// # Errors
    /// No query was in progress.
    pub fn record_query_answer(
        &mut self,
        effect: &Effect,
        answer: Option<ProviderAnswer>,
        share: u32,
        now: Timestamp,
    ) -> Result<(), ImpossibleTransition> {
        match answer {
            Some(ProviderAnswer::Passing { why, .. }) => {
                // The call certainly never happened. That is no failure of the upstream.
                self.is_in_doubt = false;
                self.last = Some(cut(&why));
                if self.is_unwanted {
                    return self.fail(
                        CommandOutcome::Cancelled,
                        "cancelled",
                        failure("cancelled", &why),
                        now,
                    );
                }
                self.happen(EffectEvent::Retry)?;
                self.due = now;
                Ok(())
            }
            Some(ProviderAnswer::Unknown { .. }) | None => {
                self.questions = self.questions.saturating_add(1);
                self.due = now + pause(&effect.retry, self.questions, share.max(1));
                Ok(())
            }
            Some(answer) => self.record_answer(effect, answer, share, now),
        }
    }

    /// Notes that its saga no longer wants the call. A call in flight is not aborted: its end is awaited. Returns whether
    /// running work has to be stopped.
    ///
    /// # Errors
    /// A row that no program wrote.
    pub fn cancel(&mut self, now: Timestamp) -> Result<bool, ImpossibleTransition> {
        if self.state.is_end() || self.is_unwanted {
            return Ok(false);
        }
        self.is_unwanted = true;
        match self.state {
            EffectState::Accepted | EffectState::Backoff => self.cancel_now(now).map(|()| false),
            EffectState::Waiting if self.external.is_none() => self.cancel_now(now).map(|()| false),
            EffectState::Waiting => Ok(true),
            _ => Ok(false),
        }
    }

    fn cancel_now(&mut self, now: Timestamp) -> Result<(), ImpossibleTransition> {
        let may_have_happened = self.may_have_happened();
        self.happen(EffectEvent::Cancel)?;
        self.finish(
            CommandOutcome::Cancelled,
            may_have_happened,
            failure("cancelled", "its saga does not want it"),
            now,
        );
        Ok(())
    }

    /// Notes a sign of life of the running work. One that follows the last too closely changes nothing, because each one
    /// noted costs a commit. One that arrives after the work was stopped for lack of them is too late.
    pub fn record_heartbeat(&mut self, effect: &Effect, now: Timestamp) {
        let Some(length) = effect.timeouts.heartbeat.filter(|_| self.state == EffectState::Waiting) else {
            return;
        };
        if self.is_unwanted && self.overdue(effect, now).is_some() {
            return;
        }
        if self.alive.is_none_or(|alive| now >= alive + length / BEATS_NOTED) {
            self.alive = Some(now);
            self.due = self.due.max(self.next_deadline(effect));
        }
    }

    /// Records a person's decision about a call whose outcome is unknown.
    ///
    /// # Errors
    /// Its outcome is known, or it is still being made.
    pub fn resolve(&mut self, happened: Option<Json>, now: Timestamp) -> Result<(), ImpossibleTransition> {
        match happened {
            Some(payload) => {
                self.happen(EffectEvent::Succeed)?;
                self.finish(CommandOutcome::Succeeded, false, payload, now);
                Ok(())
            }
            None => {
                self.is_in_doubt = false;
                self.fail(CommandOutcome::Failed, "not_done", Json::object([]), now)
            }
        }
    }

    /// Retries the call, at a person's request.
    ///
    /// # Errors
    /// Its outcome is known, or it is still being made.
    pub fn retry(&mut self, now: Timestamp) -> Result<(), ImpossibleTransition> {
        if self.state != EffectState::Backoff {
            self.happen(EffectEvent::Retry)?;
        }
        self.due = now;
        Ok(())
    }

    fn happen(&mut self, event: EffectEvent) -> Result<(), ImpossibleTransition> {
        self.state = transition::effect(Some(self.state), event)?;
        Ok(())
    }

    fn finish(&mut self, outcome: CommandOutcome, may_have_happened: bool, payload: Json, now: Timestamp) {
        self.end = Some(EffectCallResult { outcome, may_have_happened, payload, at: now });
        self.token = None;
        self.former_tokens.clear();
        self.alive = None;
    }

    /// The message with which its saga learns the end; `None` before the end.
    #[must_use]
    pub fn result(&self, tenant: &model::TenantId, effect: &model::EffectName) -> Option<EffectResult> {
        let end = self.end.as_ref()?;
        Some(EffectResult {
            tenant_id: tenant.to_string(),
            command_id: self.command,
            effect_name: effect.clone(),
            result_type: end.outcome,
            may_have_happened: end.may_have_happened,
            payload: end.payload.clone(),
            timestamp: end.at.as_millis(),
            reply_to: self.reply_to.clone(),
            metadata: self.metadata.clone(),
        })
    }
}

/// The pause before the next call: any length up to the longest, which grows with each call.
fn pause(retry: &CallRetryPolicy, attempts: u32, share: u32) -> Duration {
    let grown = retry.factor.checked_pow(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
    let longest = retry.initial.checked_mul(grown).unwrap_or(retry.max).min(retry.max);
    let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(u64::try_from((u128::from(millis) * u128::from(share)) >> 32).unwrap_or(millis))
}

fn failure(code: &str, why: &str) -> Json {
    Json::object([("code", Json::text(code)), ("message", Json::text(cut(why)))])
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests;
