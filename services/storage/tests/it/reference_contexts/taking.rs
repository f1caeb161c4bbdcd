//! Changes that calls make when they are carried out.

use std::collections::BTreeSet;

use super::{Actor, Answer, BOOTSTRAP, Call, Context, Contexts};
use crate::conformance::PastRequests;

impl Call {
    fn request_id(&self) -> &str {
        match self {
            Self::Register(request) => &request.request_id,
            Self::UpdateActor(request) => &request.request_id,
            Self::Rotate(request) => &request.request_id,
            Self::DeleteActor(request) => &request.request_id,
            Self::Create(request) => &request.request_id,
            Self::Update(request) => &request.request_id,
            Self::Delete(request) => &request.request_id,
        }
    }
}

impl Contexts {
    /// Applies a call that was carried out to the expected state.
    pub(super) fn carry_out(&mut self, who: u32, call: &Call, answer: &Answer) {
        match call {
            Call::Create(_) | Call::Update(_) | Call::Delete(_) => self.take_of_contexts(who, call, answer),
            _ => self.take_of_actors(call, answer),
        }
        if !call.request_id().is_empty() {
            self.said.push((who, call.clone()));
            // A context remembers itself what changes it.
            if !matches!(call, Call::Update(_)) {
                self.past_requests.remember(who, call.request_id(), call);
            }
        }
    }

    fn take_of_actors(&mut self, call: &Call, answer: &Answer) {
        match call {
            Call::Register(request) => {
                let Answer::Actor(actor) = answer else { panic!("{answer:?} is no actor") };
                assert!(request.id == 0 || request.id == actor.id);
                self.revision += 1;
                let new = Actor {
                    keys: vec![request.pubkey.clone()],
                    living: 1,
                    address: request.address.clone(),
                    home: 0,
                    revision: self.revision,
                    is_gone: false,
                };
                assert!(self.actors.insert(actor.id, new).is_none(), "no number is given twice");
                self.keys.entry(request.pubkey.clone()).or_insert(actor.id);
            }
            Call::UpdateActor(request) => {
                let actor = self.changed(request.id);
                (actor.address, actor.home) = (request.address.clone(), request.home_context);
            }
            Call::Rotate(request) => {
                let actor = self.actors.get_mut(&request.id).unwrap();
                actor.living = 1 + if request.overlap_secs > 0 { actor.living } else { 0 };
                actor.keys.push(request.pubkey.clone());
                self.changed(request.id);
            }
            Call::DeleteActor(request) => {
                self.revision += 1;
                let actor = self.actors.get_mut(&request.id).unwrap();
                actor.is_gone = true;
                for context in self.contexts.values_mut().filter(|context| context.role(request.id).is_some())
                {
                    context.revision += 1;
                    for list in &mut context.lists {
                        list.remove(&request.id);
                    }
                }
            }
            Call::Create(_) | Call::Update(_) | Call::Delete(_) => panic!("{call:?} is of contexts"),
        }
    }

    fn take_of_contexts(&mut self, who: u32, call: &Call, answer: &Answer) {
        match call {
            Call::Create(request) => {
                let Answer::Context(context) = answer else { panic!("{answer:?} is no context") };
                self.revision += 1;
                let mut lists = [&request.admins, &request.executors, &request.readers]
                    .map(|ids| ids.iter().copied().collect::<BTreeSet<u32>>());
                let creator = Some(who).filter(|who| *who != BOOTSTRAP);
                lists[0].extend(creator);
                let (uid, past_requests) = (context.uid.clone(), PastRequests::default());
                let new = Context { uid, lists, revision: 1, creator, past_requests };
                assert!(self.contexts.insert(context.id, new).is_none(), "no number is given twice");
                self.made.insert((who, request.request_id.clone()), context.uid.clone());
            }
            Call::Update(request) => {
                let context = self.contexts.get_mut(&request.context_id).unwrap();
                context.revision += 1;
                let lists = [&request.admins, &request.executors, &request.readers];
                for (list, new) in context.lists.iter_mut().zip(lists) {
                    if let Some(new) = new {
                        *list = new.ids.iter().copied().collect();
                    }
                }
                context.past_requests.remember(who, &request.request_id, call);
            }
            Call::Delete(request) => {
                self.revision += 1;
                self.contexts.remove(&request.context_id).unwrap();
            }
            _ => panic!("{call:?} is of actors"),
        }
    }
}
