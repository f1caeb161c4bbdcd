//! Requests to a call, and their answers.

use model::{BlobHash, EffectState, Timestamp};
use subtle::ConstantTimeEq as _;

use super::{CallRow, ProviderAnswer};
use crate::Json;
use crate::lane_request::{CallCompletion, EffectCallRequest};
use crate::step::RequestRefusal;
use crate::transition::ImpossibleTransition;

/// Former tokens that can also complete a call: its upstream may know only the first one.
const TOKENS_MAX: usize = 16;

impl CallRow {
    /// Carries out a request, if the state of the call allows it; returns whether running work has to be stopped.
    ///
    /// # Errors
    /// Why it cannot be done. Nothing was changed.
    pub fn apply_request(
        &mut self,
        request: &EffectCallRequest,
        now: Timestamp,
    ) -> Result<bool, RequestRefusal> {
        use EffectState as S;
        let state = self.state;
        let refuse = |reason: &str, message: &str| {
            let message = format!("the call is {state}: {message}");
            Err(RequestRefusal { reason: reason.to_owned(), message })
        };
        let done = match request {
            EffectCallRequest::Happened { .. } | EffectCallRequest::NotDone
                if !matches!(state, S::Unknown | S::Manual) =>
            {
                return refuse("EFFECT_NOT_UNKNOWN", "whether it happened is known, or it is being made");
            }
            EffectCallRequest::Happened { result } => self.resolve(Some(result.clone()), now).map(|()| false),
            EffectCallRequest::NotDone => self.resolve(None, now).map(|()| false),
            EffectCallRequest::Retry if self.is_unwanted => {
                return refuse("EFFECT_NOT_OPEN", "its saga no longer wants it");
            }
            EffectCallRequest::Retry => match state {
                // The first attempt is already due.
                S::Accepted => Ok(false),
                S::Backoff | S::Unknown | S::Manual => self.retry(now).map(|()| false),
                _ => {
                    return refuse("EFFECT_NOT_OPEN", "it has ended, is being made, or waits for its answer");
                }
            },
            EffectCallRequest::Cancel if state.is_end() => return refuse("EFFECT_NOT_OPEN", "it has ended"),
            EffectCallRequest::Cancel => self.cancel(now),
            EffectCallRequest::Complete { token, end } => {
                if self.token.is_none() {
                    return refuse("EFFECT_NOT_WAITING", "it waits for no token");
                }
                if !self.has_token(token) {
                    return refuse("TOKEN_REFUSED", "the token is another one");
                }
                if !matches!(state, S::Calling | S::Waiting | S::Unknown | S::Manual) {
                    return refuse("EFFECT_NOT_WAITING", "it is not being made");
                }
                self.complete(end, now).map(|()| false)
            }
        };
        done.or_else(|_| refuse("EFFECT_NOT_OPEN", "this cannot happen to it now"))
    }

    /// Notes the token of the call that is about to be made.
    pub fn expect_token(&mut self, token: Option<BlobHash>) {
        if let (Some(former), true) = (self.token.take(), token.is_some()) {
            self.former_tokens.push(former);
            let beyond = self.former_tokens.len().saturating_sub(TOKENS_MAX);
            self.former_tokens.drain(..beyond);
        }
        self.token = token;
    }

    /// Compares in constant time.
    fn has_token(&self, token: &BlobHash) -> bool {
        let tokens = self.token.iter().chain(&self.former_tokens);
        let is_one = tokens.map(|known| known.as_bytes().as_slice().ct_eq(token.as_bytes().as_slice()));
        is_one.fold(subtle::Choice::from(0), |found, same| found | same).into()
    }

    fn complete(&mut self, end: &CallCompletion, now: Timestamp) -> Result<(), ImpossibleTransition> {
        // The holder of the token knows the outcome.
        self.is_in_doubt = false;
        match end {
            CallCompletion::Succeeded { result } => {
                self.happen(crate::transition::EffectEvent::Succeed)?;
                self.finish(crate::input::CommandOutcome::Succeeded, false, result.clone(), now);
                Ok(())
            }
            CallCompletion::Failed { code, result } => {
                let result = if *result == Json::Null { Json::object([]) } else { result.clone() };
                self.fail(crate::input::CommandOutcome::Failed, code, result, now)
            }
        }
    }
}

impl ProviderAnswer {
    /// Returns true if the call was begun and its answer comes later.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::message::{EffectCommand, ResultRecipient};

    fn call(state: EffectState) -> CallRow {
        let command = EffectCommand {
            tenant_id: "acme".to_owned(),
            command_id: model::CommandId::from_bits(7),
            effect_name: "pay".parse().expect("a name"),
            payload: Json::Null,
            cancel: false,
            reply_to: ResultRecipient {
                saga: "order".parse().expect("a name"),
                correlation: "c".parse().expect("a correlation"),
                run: 0,
                step: "pay".parse().expect("a step"),
            },
            metadata: BTreeMap::new(),
        };
        CallRow { state, ..CallRow::accept(command, now()) }
    }

    fn now() -> Timestamp {
        Timestamp::from_millis(1000)
    }

    fn complete(token: &str) -> EffectCallRequest {
        let end = CallCompletion::Succeeded { result: Json::Int(1) };
        EffectCallRequest::Complete { token: BlobHash::of(token.as_bytes()), end }
    }

    fn reason(call: &mut CallRow, request: &EffectCallRequest) -> String {
        let before = call.clone();
        let refusal = call.apply_request(request, now()).expect_err("refused");
        assert_eq!(*call, before, "nothing was changed");
        refusal.reason
    }

    #[test]
    fn a_word_that_does_not_fit_is_refused_and_changes_nothing() {
        use EffectState as S;
        for state in EffectState::ALL {
            let happened = EffectCallRequest::Happened { result: Json::Null };
            for request in [happened, EffectCallRequest::NotDone] {
                if !matches!(state, S::Unknown | S::Manual) {
                    assert_eq!(reason(&mut call(state), &request), "EFFECT_NOT_UNKNOWN", "{state}");
                }
            }
            let is_retried = matches!(state, S::Accepted | S::Backoff | S::Unknown | S::Manual);
            assert_eq!(
                call(state).apply_request(&EffectCallRequest::Retry, now()).is_ok(),
                is_retried,
                "{state}"
            );
            assert_eq!(
                call(state).apply_request(&EffectCallRequest::Cancel, now()).is_ok(),
                !state.is_end(),
                "{state}"
            );
            assert_eq!(reason(&mut call(state), &complete("t")), "EFFECT_NOT_WAITING", "{state}");
        }
        let mut unwanted = CallRow { is_unwanted: true, ..call(S::Backoff) };
        assert_eq!(reason(&mut unwanted, &EffectCallRequest::Retry), "EFFECT_NOT_OPEN");
    }

    #[test]
    fn a_call_ends_by_any_of_its_tokens_and_once() {
        let mut waiting = call(EffectState::Waiting);
        for token in ["first", "second"] {
            waiting.expect_token(Some(BlobHash::of(token.as_bytes())));
        }
        assert_eq!(reason(&mut waiting, &complete("third")), "TOKEN_REFUSED");
        for token in ["first", "second"] {
            let mut completed = waiting.clone();
            assert_eq!(completed.apply_request(&complete(token), now()), Ok(false));
            assert_eq!(completed.state, EffectState::Succeeded);
            assert_eq!(reason(&mut completed, &complete(token)), "EFFECT_NOT_WAITING");
        }
        for number in 0..100 {
            waiting.expect_token(Some(BlobHash::of(&[number])));
        }
        assert_eq!(waiting.former_tokens.len(), TOKENS_MAX);
    }
}
