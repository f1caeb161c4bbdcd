//! Expected outcomes of calls that concern actors and contexts.

use identity::{TrustDomain, key_proof};
use model::{ActorId, Role, Timestamp};
use proto::v1;
use tonic::Code;

use super::{BOOTSTRAP, Call, Context, Contexts};
use crate::conformance::End;

const LAST_ADMIN: End = End::Refused(Code::FailedPrecondition, "LAST_ADMIN");
const TAKEN: End = End::Refused(Code::AlreadyExists, "ALREADY_EXISTS");

impl Context {
    /// Returns why an actor may not administer the context.
    fn refuses(&self, who: u32) -> Option<End> {
        match self.role(who) {
            _ if who == BOOTSTRAP => None,
            Some(Role::Admin) => None,
            Some(_) => Some(End::DENIED),
            None => Some(End::UNSEEN),
        }
    }
}

impl Contexts {
    /// Expected outcome of a call.
    pub(super) fn end_of(&self, who: u32, call: &Call) -> End {
        let before = |request_id: &str| self.past_requests.before(who, request_id, call);
        // Others learn not even that it exists.
        let may_change = |id: u32| who == BOOTSTRAP || who == id;
        let stale = |expected: u64, revision: u64| expected != 0 && expected != revision;
        match call {
            Call::Register(request) => before(&request.request_id).unwrap_or_else(|| match () {
                () if self.actors.contains_key(&request.id) => TAKEN,
                () if self.keys.contains_key(&request.pubkey) => End::refused(Code::InvalidArgument),
                () => End::Made,
            }),
            Call::UpdateActor(request) => {
                let home = request.home_context;
                if !may_change(request.id) {
                    return End::UNSEEN;
                }
                if let Some(end) = before(&request.request_id) {
                    return end;
                }
                let reads = self.contexts.get(&home).and_then(|context| context.role(request.id));
                match self.actor(request.id) {
                    _ if home != 0 && reads.is_none() => End::refused(Code::InvalidArgument),
                    None => End::UNSEEN,
                    Some(actor) if stale(request.expected_revision, actor.revision) => {
                        End::refused(Code::Aborted)
                    }
                    Some(_) => End::Made,
                }
            }
            Call::Rotate(request) => {
                if !may_change(request.id) {
                    return End::UNSEEN;
                }
                if let Some(end) = before(&request.request_id) {
                    return end;
                }
                // An actor that sets its key must prove that it holds it.
                let (proof, actor) = (&request.key_proof, ActorId(request.id));
                let key = request.pubkey.parse().unwrap();
                let proven = key_proof::check(proof, key, &TrustDomain::default(), actor, Timestamp::now());
                if proven.is_err() && !(who == BOOTSTRAP && proof.is_empty()) {
                    return End::refused(Code::InvalidArgument);
                }
                let Some(actor) = self.actor(request.id) else { return End::UNSEEN };
                let stays = if request.overlap_secs > 0 { actor.living } else { 0 };
                match () {
                    () if stale(request.expected_revision, actor.revision) => End::refused(Code::Aborted),
                    () if actor.keys.contains(&request.pubkey) => End::refused(Code::InvalidArgument),
                    () if stays >= 8 => End::refused(Code::ResourceExhausted),
                    () => End::Made,
                }
            }
            Call::DeleteActor(request) => {
                if !may_change(request.id) {
                    return End::UNSEEN;
                }
                if let Some(end) = before(&request.request_id) {
                    return end;
                }
                let Some(actor) = self.actor(request.id) else { return End::UNSEEN };
                let only = |context: &Context| context.lists[0].iter().eq([&request.id]);
                match () {
                    () if stale(request.expected_revision, actor.revision) => End::refused(Code::Aborted),
                    () if self.contexts.values().any(only) => LAST_ADMIN,
                    () => End::Made,
                }
            }
            Call::Create(request) => {
                if who != BOOTSTRAP && self.actor(who).is_none() {
                    return End::DENIED;
                }
                if let Some(end) = before(&request.request_id) {
                    // Also when another one has its number by now.
                    let uid = self.made.get(&(who, request.request_id.clone()));
                    let is_there = self.contexts.values().any(|context| Some(&context.uid) == uid);
                    return if is_there || end == End::REUSED { end } else { End::UNSEEN };
                }
                let v1::CreateContextRequest { admins, executors, readers, .. } = request;
                let mut members = admins.iter().chain(executors).chain(readers);
                let no_admin = who == BOOTSTRAP && admins.is_empty();
                if no_admin || members.any(|id| self.actor(*id).is_none()) {
                    return End::refused(Code::InvalidArgument);
                }
                let is_taken = self.contexts.contains_key(&request.id);
                if is_taken { TAKEN } else { End::Made }
            }
            Call::Update(request) => self.expect_update(who, request, call),
            Call::Delete(request) => {
                match (before(&request.request_id), self.contexts.get(&request.context_id)) {
                    (Some(end), _) => end,
                    (None, None) => End::UNSEEN,
                    (None, Some(context)) => context.refuses(who).unwrap_or(End::Made),
                }
            }
        }
    }

    fn expect_update(&self, who: u32, request: &v1::UpdateContextRequest, call: &Call) -> End {
        let Some(context) = self.contexts.get(&request.context_id) else { return End::UNSEEN };
        if let Some(no) = context.refuses(who) {
            return no;
        }
        if let Some(end) = context.past_requests.before(who, &request.request_id, call) {
            return end;
        }
        let v1::UpdateContextRequest { expected_revision, admins, executors, readers, .. } = request;
        if *expected_revision != 0 && *expected_revision != context.revision {
            return End::refused(Code::Aborted);
        }
        let mut members = [admins, executors, readers].into_iter().flatten().flat_map(|list| &list.ids);
        if members.any(|id| self.actor(*id).is_none()) {
            return End::refused(Code::InvalidArgument);
        }
        if admins.as_ref().is_some_and(|list| list.ids.is_empty()) { LAST_ADMIN } else { End::Made }
    }
}
