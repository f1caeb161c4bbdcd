//! Requests for actors and contexts.

use identity::SigningKey;
use proto::v1;

use super::{ACTORS_MAX, BOOTSTRAP, Builds, CONTEXTS_MAX, Call, Contexts, NOBODY, Op, What};
use crate::actors::proof_of;
use crate::stage::ADMIN;

fn fresh_key() -> String {
    SigningKey::generate().verifying_key().to_string()
}

/// Another body under the same request id.
fn changed(mut call: Call) -> Call {
    match &mut call {
        Call::Register(request) => request.pubkey = fresh_key(),
        Call::UpdateActor(request) => request.expected_revision += 1000,
        Call::Rotate(request) => request.expected_revision += 1000,
        Call::DeleteActor(request) => {
            // The same fields, but it means something else.
            let v1::DeleteActorRequest { request_id, id, expected_revision } = request.clone();
            let request = v1::UpdateActorRequest { request_id, id, expected_revision, ..Default::default() };
            call = Call::UpdateActor(request);
        }
        Call::Create(request) => request.readers.push(ADMIN),
        Call::Update(request) => request.expected_revision += 1000,
        Call::Delete(request) => request.context_id += 1,
    }
    call
}

fn request_id(op: &Op) -> String {
    op.request.map(|n| format!("r{n}")).unwrap_or_default()
}

fn context_id(op: &Op) -> Option<u32> {
    Some(u32::try_from(op.object).ok()? % (CONTEXTS_MAX + 1) + 1)
}

impl Contexts {
    /// Those that are there, and some that are not.
    pub(super) fn some_actors(&self) -> Vec<u32> {
        let gone = self.actors.iter().rev().filter(|(_, actor)| actor.is_gone).take(2);
        let there = self.actors.iter().filter(|(_, actor)| !actor.is_gone);
        there.chain(gone).map(|(id, _)| *id).chain([NOBODY]).collect()
    }

    fn builds_on(builds: Builds, revision: Option<u64>) -> u64 {
        match (builds, revision) {
            (Builds::Any, _) => 0,
            (Builds::TheLast, last) => last.unwrap_or(1),
            (Builds::Another, last) => last.filter(|last| *last > 1).map_or(77, |last| last - 1),
        }
    }

    /// Members that a mask picks.
    fn members(&self, mask: u8) -> Vec<u32> {
        let actors = self.some_actors();
        // Who is not there is rarely named.
        let there = actors.iter().enumerate().filter(|(_, id)| mask > 240 || self.actor(**id).is_some());
        there.filter(|(place, _)| mask >> (place % 8) & 1 == 1).map(|(_, id)| *id).collect()
    }

    /// Call that an operation makes, and the actor that makes it.
    pub(super) fn call(&self, op: &Op) -> Option<(u32, Call)> {
        match op.what {
            What::Register | What::UpdateActor | What::Rotate | What::DeleteActor => self.call_of_actors(op),
            What::Create | What::Update | What::Delete => self.call_of_contexts(op),
            What::Again => {
                let (who, call) = self.said.iter().rev().nth(op.object % 12)?.clone();
                Some((who, if op.other { changed(call) } else { call }))
            }
        }
    }

    fn who(&self, op: &Op) -> Option<u32> {
        let actors = self.some_actors();
        [BOOTSTRAP].iter().chain(&actors).copied().cycle().nth(op.who % (actors.len() + 1))
    }

    fn call_of_actors(&self, op: &Op) -> Option<(u32, Call)> {
        let actors = self.some_actors();
        let id = actors[op.object % actors.len()];
        // Mostly an actor does for itself what no other actor may.
        let own = if op.number.is_multiple_of(4) { self.who(op)? } else { [BOOTSTRAP, id][op.number % 2] };
        let request_id = request_id(op);
        let expected_revision = Self::builds_on(op.builds, self.actor(id).map(|actor| actor.revision));
        Some(match op.what {
            What::Register => {
                let is_full = self.actors.values().filter(|actor| !actor.is_gone).count() >= ACTORS_MAX;
                let id = if op.number.is_multiple_of(3) { id.min(NOBODY - 1) } else { 0 };
                if is_full && self.actor(id).is_none() {
                    return None;
                }
                let known = self.actor(id).filter(|_| op.other).map(|actor| actor.keys[0].clone());
                let pubkey = known.unwrap_or_else(fresh_key);
                let address = vec![format!("grpc://h:{}", 1 + op.number)];
                (BOOTSTRAP, Call::Register(v1::RegisterActorRequest { request_id, id, pubkey, address }))
            }
            What::UpdateActor => {
                let address = (0..op.number % 3).map(|n| format!("grpc://h{n}:{}", 1 + op.number)).collect();
                let home_context = if op.other { context_id(op)? } else { 0 };
                let request =
                    v1::UpdateActorRequest { request_id, id, expected_revision, address, home_context };
                (own, Call::UpdateActor(request))
            }
            What::Rotate => {
                // One that it had is refused.
                let known =
                    self.actor(id).filter(|_| op.number.is_multiple_of(5)).map(|actor| actor.keys[0].clone());
                let next = SigningKey::generate();
                let request = v1::RotateActorKeyRequest {
                    request_id,
                    id,
                    expected_revision,
                    pubkey: known.unwrap_or_else(|| next.verifying_key().to_string()),
                    overlap_secs: if op.number.is_multiple_of(3) { 0 } else { 3600 },
                    revoke_certificates: op.other,
                    // Sometimes it is forgotten.
                    key_proof: if op.number.is_multiple_of(7) { String::new() } else { proof_of(&next, id) },
                };
                (own, Call::Rotate(request))
            }
            What::DeleteActor => {
                (own, Call::DeleteActor(v1::DeleteActorRequest { request_id, id, expected_revision }))
            }
            What::Create | What::Update | What::Delete | What::Again => return None,
        })
    }

    fn call_of_contexts(&self, op: &Op) -> Option<(u32, Call)> {
        let (who, context_id, request_id) = (self.who(op)?, context_id(op)?, request_id(op));
        let list = |n: usize| op.lists[n].map(|mask| self.members(mask));
        let call = match op.what {
            What::Create => {
                let is_full = self.contexts.len() >= CONTEXTS_MAX as usize;
                let id = if is_full || op.other { context_id } else { 0 };
                let [admins, executors, readers] = [0, 1, 2].map(|n| list(n).unwrap_or_default());
                let request =
                    v1::CreateContextRequest { request_id, id, admins, readers, executors, settings: None };
                Call::Create(request)
            }
            What::Update => {
                let revision = self.contexts.get(&context_id).map(|context| context.revision);
                let [admins, executors, readers] =
                    [0, 1, 2].map(|n| list(n).map(|ids| v1::ActorList { ids }));
                let request = v1::UpdateContextRequest {
                    request_id,
                    context_id,
                    expected_revision: Self::builds_on(op.builds, revision),
                    admins,
                    readers,
                    executors,
                    settings: None,
                };
                Call::Update(request)
            }
            What::Delete => {
                let delete = v1::DeleteContextRequest { context_id, request_id, expected_revision: 0 };
                Call::Delete(delete)
            }
            _ => return None,
        };
        Some((who, call))
    }
}
