//! Random operations on actors and contexts against a short reference of what they are.

mod asking;
mod expected;
mod taking;

use std::collections::{BTreeMap, BTreeSet};

use identity::Identity;
use keys::{GlobalKey, GlobalKeys};
use kv::Cmd;
use model::{ActorId, Role};
use proptest::prelude::*;
use proto::v1;
use tonic::{Code, Status};

use crate::conformance::{self, End, Family, Kept, PastRequests, Requesting};
use crate::places::Redis;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, key_of};

/// Number under which no actor was ever registered.
const NOBODY: u32 = 999;
/// The bootstrap identity, as the one that makes a request.
const BOOTSTRAP: u32 = 0;
const ACTORS_MAX: usize = 7;
const CONTEXTS_MAX: u32 = 4;

#[derive(Debug, Clone, Copy)]
enum What {
    Register,
    UpdateActor,
    Rotate,
    DeleteActor,
    Create,
    Update,
    Delete,
    /// An earlier request, with the same body or with another one.
    Again,
}

#[derive(Debug, Clone, Copy)]
enum Builds {
    Any,
    TheLast,
    Another,
}

/// Chances, of which each operation takes those that it needs.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    what: What,
    who: usize,
    object: usize,
    number: usize,
    lists: [Option<u8>; 3],
    builds: Builds,
    request: Option<u8>,
    other: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Register(v1::RegisterActorRequest),
    UpdateActor(v1::UpdateActorRequest),
    Rotate(v1::RotateActorKeyRequest),
    DeleteActor(v1::DeleteActorRequest),
    Create(v1::CreateContextRequest),
    Update(v1::UpdateContextRequest),
    Delete(v1::DeleteContextRequest),
}

/// Answer to a call.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Actor(v1::Actor),
    Context(v1::Context),
    Nothing,
}

#[derive(Debug)]
struct Actor {
    keys: Vec<String>,
    /// How many of them count.
    living: usize,
    address: Vec<String>,
    home: u32,
    revision: u64,
    is_gone: bool,
}

#[derive(Debug)]
struct Context {
    uid: String,
    /// Admins, executors, readers.
    lists: [BTreeSet<u32>; 3],
    revision: u64,
    /// Actor that the context counts for; none when the bootstrap identity created it.
    creator: Option<u32>,
    past_requests: PastRequests<Call>,
}

impl Context {
    fn role(&self, actor: u32) -> Option<Role> {
        let roles = [Role::Admin, Role::Executor, Role::Reader];
        self.lists.iter().zip(roles).find(|(list, _)| list.contains(&actor)).map(|(_, role)| role)
    }
}

pub(crate) struct Contexts {
    actors: BTreeMap<u32, Actor>,
    contexts: BTreeMap<u32, Context>,
    /// Actors by their keys.
    keys: BTreeMap<String, u32>,
    revision: u64,
    past_requests: PastRequests<Call>,
    /// The contexts that requests made.
    made: BTreeMap<(u32, String), String>,
    said: Vec<(u32, Call)>,
}

fn identity(who: u32) -> Identity {
    if who == BOOTSTRAP { Identity::Admin } else { Identity::Actor(ActorId(who)) }
}

fn list_of(ids: &BTreeSet<u32>) -> Vec<u32> {
    ids.iter().copied().collect()
}

impl Contexts {
    fn actor(&self, id: u32) -> Option<&Actor> {
        self.actors.get(&id).filter(|actor| !actor.is_gone)
    }

    /// One that has changed just now. Its key in force leads to it, unless it leads to another.
    fn changed(&mut self, id: u32) -> &mut Actor {
        self.revision += 1;
        let actor = self.actors.get_mut(&id).unwrap();
        self.keys.entry(actor.keys.last().unwrap().clone()).or_insert(id);
        actor.revision = self.revision;
        actor
    }

    fn is_as_kept(&self, said: &v1::Actor) -> bool {
        let actor = &self.actors[&said.id];
        said.keys.iter().map(|key| &key.key).eq(&actor.keys)
            && Some(&said.pubkey) == actor.keys.last()
            && (actor.is_gone || (said.home_context, &said.address) == (actor.home, &actor.address))
            && (actor.is_gone || said.revision == actor.revision)
    }

    fn is_as_made(&self, said: &v1::Context) -> bool {
        let context = &self.contexts[&said.id];
        let lists = context.lists.each_ref().map(list_of);
        [&said.admins, &said.executors, &said.readers] == lists.each_ref()
            && (said.uid.as_str(), said.revision) == (context.uid.as_str(), context.revision)
            && said.state() == v1::ContextState::Active
    }

    async fn check_actors(&self, stage: &Stage<impl Redis>) {
        let mut admin = stage.actors(Identity::Admin);
        for (id, actor) in &self.actors {
            let got = admin.get_actor(v1::GetActorRequest { id: *id }).await;
            assert_eq!(got.is_err(), actor.is_gone);
            assert!(got.is_err() || self.is_as_kept(&got.unwrap().into_inner().actor.unwrap()), "actor {id}");
        }
        let all = admin.list_actors(v1::ListActorsRequest::default()).await.unwrap().into_inner().actors;
        let there = self.actors.iter().filter(|(_, actor)| !actor.is_gone).map(|(id, _)| *id);
        assert!(all.iter().map(|actor| actor.id).eq(there));
        for who in self.some_actors() {
            let said = stage.actors(identity(who)).who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
            assert_eq!(said.actor.is_some(), self.actor(who).is_some());
            let roles = said.roles.into_iter().map(|role| (role.context_id, role.role)).collect::<Vec<_>>();
            let known = self.contexts.iter();
            let known = known.filter_map(|(id, context)| Some((*id, context.role(who)?.to_string())));
            assert_eq!(roles, known.collect::<Vec<_>>(), "actor {who}");
            for other in self.some_actors() {
                let shares = |context: &Context| context.role(who).is_some() && context.role(other).is_some();
                let knows = who == other || self.contexts.values().any(shares);
                let got = stage.actors(identity(who)).get_actor(v1::GetActorRequest { id: other }).await;
                assert_eq!(got.is_ok(), knows && self.actor(other).is_some(), "{who} reads {other}");
            }
        }
    }

    async fn check_contexts(&self, stage: &Stage<impl Redis>) {
        for who in self.some_actors().into_iter().chain([BOOTSTRAP]) {
            let mut contexts = stage.contexts(identity(who));
            let may_see = |context: &Context| who == BOOTSTRAP || context.role(who).is_some();
            for id in self.contexts.keys().copied().chain(1..=CONTEXTS_MAX + 1) {
                match contexts.get_context(v1::GetContextRequest { id }).await {
                    Ok(got) => assert!(self.is_as_made(&got.into_inner().context.unwrap())),
                    Err(status) => assert_eq!(status.code(), Code::NotFound),
                }
                let got = contexts.get_context(v1::GetContextRequest { id }).await;
                assert_eq!(got.is_ok(), self.contexts.get(&id).is_some_and(may_see), "{who} reads {id}");
            }
            let all = v1::ListContextsRequest { page_size: 1000, ..Default::default() };
            let listed = contexts.list_contexts(all).await.unwrap();
            let known = self.contexts.iter().filter(|(_, context)| may_see(context)).map(|(id, _)| *id);
            assert!(listed.into_inner().contexts.iter().map(|context| context.id).eq(known), "{who} lists");
        }
    }

    async fn check_indexes(&self, stage: &Stage<impl Redis>) {
        let (keys, zero) =
            (GlobalKeys::new(stage.layout), stage.kv.at(0, &stage.layout.tag(model::ContextId(0))));
        let found = zero.cmd(Cmd::new("HGETALL").arg(&keys.actor_keys())).await.unwrap().hash().unwrap();
        let known: BTreeMap<_, _> = self.keys.iter().map(|(key, id)| (key.clone(), id.to_string())).collect();
        assert_eq!(found, known, "who is found by a key");
        let marks = zero.cmd(Cmd::new("HKEYS").arg(&keys.ids())).await.unwrap().texts().unwrap();
        let reserved: Vec<_> = marks.iter().filter(|mark| mark.starts_with("context:")).collect();
        assert!(reserved.is_empty(), "nothing is under way: {reserved:?}");
    }
}

impl Requesting for Contexts {
    type Call = Call;
    type Answer = Answer;

    fn expect(&self, who: u32, call: &Call) -> End {
        self.end_of(who, call)
    }

    async fn perform(&self, stage: &Stage<impl Redis>, who: u32, call: Call) -> Result<Answer, Status> {
        let (mut actors, mut contexts) = (stage.actors(identity(who)), stage.contexts(identity(who)));
        Ok(match call {
            Call::Register(request) => {
                Answer::Actor(actors.register_actor(request).await?.into_inner().actor.unwrap())
            }
            Call::UpdateActor(request) => {
                Answer::Actor(actors.update_actor(request).await?.into_inner().actor.unwrap())
            }
            Call::Rotate(request) => {
                Answer::Actor(actors.rotate_actor_key(request).await?.into_inner().actor.unwrap())
            }
            Call::DeleteActor(request) => {
                actors.delete_actor(request).await?;
                Answer::Nothing
            }
            Call::Create(request) => {
                Answer::Context(contexts.create_context(request).await?.into_inner().context.unwrap())
            }
            Call::Update(request) => {
                Answer::Context(contexts.update_context(request).await?.into_inner().context.unwrap())
            }
            Call::Delete(request) => {
                contexts.delete_context(request).await?;
                Answer::Nothing
            }
        })
    }

    fn take(&mut self, who: u32, call: &Call, answer: &Answer) {
        self.carry_out(who, call, answer);
    }

    fn check_answer(&self, who: u32, call: &Call, answer: &Answer, _: End) {
        let is_right = match answer {
            Answer::Actor(actor) => self.is_as_kept(actor),
            Answer::Context(context) => self.is_as_made(context),
            Answer::Nothing => true,
        };
        assert!(is_right, "{who} asks {call:?}: {answer:?}");
    }
}

impl Family for Contexts {
    type Op = Op;

    fn any_op() -> impl Strategy<Value = Op> {
        let what = prop_oneof![
            2 => Just(What::Register),
            3 => Just(What::UpdateActor),
            3 => Just(What::Rotate),
            1 => Just(What::DeleteActor),
            3 => Just(What::Create),
            4 => Just(What::Update),
            2 => Just(What::Delete),
            4 => Just(What::Again),
        ];
        let builds =
            prop_oneof![2 => Just(Builds::Any), 2 => Just(Builds::TheLast), 1 => Just(Builds::Another)];
        let lists = prop::array::uniform3(prop::option::of(any::<u8>()));
        let request = prop::option::of(any::<u8>());
        let chances =
            (what, 0_usize..1000, 0_usize..1000, 0_usize..1000, lists, builds, request, any::<bool>());
        chances.prop_map(|(what, who, object, number, lists, builds, request, other)| Op {
            what,
            who,
            object,
            number,
            lists,
            builds,
            request,
            other,
        })
    }

    async fn new(stage: &Stage<impl Redis>) -> Self {
        let mut known = Self {
            actors: BTreeMap::new(),
            contexts: BTreeMap::new(),
            keys: BTreeMap::new(),
            revision: 5,
            past_requests: PastRequests::default(),
            made: BTreeMap::new(),
            said: Vec::new(),
        };
        for (id, revision) in [ADMIN, EXECUTOR, READER, STRANGER].into_iter().zip(1..) {
            let keys = vec![key_of(id)];
            known.keys.insert(key_of(id), id);
            let actor = Actor { keys, living: 1, address: Vec::new(), home: 0, revision, is_gone: false };
            known.actors.insert(id, actor);
        }
        let lists = [ADMIN, EXECUTOR, READER].map(|id| BTreeSet::from([id]));
        let (uid, past_requests) = (stage.context_uid.clone(), PastRequests::default());
        let context = Context { uid, lists, revision: 1, creator: None, past_requests };
        known.contexts.insert(CONTEXT, context);
        known
    }

    async fn apply(&mut self, stage: &Stage<impl Redis>, op: Op) {
        if let Some((who, call)) = self.call(&op) {
            self.request(stage, who, call).await;
        }
    }

    async fn check(&mut self, stage: &Stage<impl Redis>) {
        self.check_actors(stage).await;
        self.check_contexts(stage).await;
        self.check_indexes(stage).await;
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::globally(self.revision);
        // A list of nothing is none.
        if self.actors.values().any(|actor| !actor.is_gone) {
            kept.global(&GlobalKey::Actors);
        }
        if !self.keys.is_empty() {
            kept.global(&GlobalKey::ActorKeys);
        }
        for id in self.actors.keys() {
            kept.global(&GlobalKey::Actor(ActorId(*id)));
        }
        for (who, request_id) in self.past_requests.keys() {
            kept.global(&GlobalKey::Request(who, request_id));
        }
        if !self.contexts.is_empty() {
            kept.global(&GlobalKey::Contexts);
        }
        for (id, context) in &self.contexts {
            if let Some(creator) = context.creator {
                kept.global(&GlobalKey::ContextsOf(ActorId(creator)));
                kept.global(&GlobalKey::ContextCreators);
            }
            kept.context(*id, context.revision);
            context.past_requests.keep(*id, &mut kept);
        }
        kept
    }
}

#[test]
fn actors_and_contexts_match_the_reference() {
    conformance::with_databases::<Contexts>(20);
}

#[test]
fn actors_and_contexts_match_the_reference_with_hash_tags() {
    conformance::with_hash_tags::<Contexts>(20);
}

#[test]
fn actors_and_contexts_match_the_reference_in_a_cluster() {
    conformance::in_a_cluster::<Contexts>(20);
}
