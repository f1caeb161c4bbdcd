//! Who may do what in a context: the one place where that is decided.
//!
//! The table is that of the specification, section 4. Whoever has no role is told that there is no such context.

use model::context::Denied;
use model::{ActorId, Context, Role};

use crate::error::Result;
use crate::store::Asker;

/// What an action takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// This role.
    Role(Role),
    /// This role for what is the actor's own, admin for what is another's.
    Own(Role),
    /// As `Own(Executor)`, where executors may submit; else admin.
    Submit,
}

macro_rules! actions {
    ($($(#[$doc:meta])* $action:ident = $name:literal needs $need:expr;)+) => {
        /// Something that is done in a context, or to it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Action {
            $($(#[$doc])* $action),+
        }

        impl Action {
            /// All of them.
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$action),+];

            /// What the audit calls it.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$action => $name),+ }
            }

            /// What it takes.
            pub(crate) const fn need(self) -> Need {
                match self { $(Self::$action => $need),+ }
            }
        }
    };
}

actions! {
    /// Reads what is in the context: the context itself, flows, nodes, jobs, blobs, logs, messages, runner records, events.
    Read = "context.read" needs Need::Role(Role::Reader);
    /// Reads who did what.
    ReadAudit = "audit.read" needs Need::Role(Role::Admin);
    /// Makes a context. Every actor may, and is its first admin.
    CreateContext = "context.create" needs Need::Role(Role::Admin);
    /// Changes members and settings.
    UpdateContext = "context.update" needs Need::Role(Role::Admin);
    /// Removes the context.
    DeleteContext = "context.delete" needs Need::Role(Role::Admin);
    /// Registers an actor: the bootstrap identity alone.
    RegisterActor = "actor.register" needs Need::Role(Role::Admin);
    /// Changes where an actor is reached: itself and the bootstrap identity.
    UpdateActor = "actor.update" needs Need::Role(Role::Admin);
    /// Gives an actor another key: itself and the bootstrap identity.
    RotateActorKey = "actor.rotate_key" needs Need::Role(Role::Admin);
    /// Removes an actor: itself and the bootstrap identity.
    DeleteActor = "actor.delete" needs Need::Role(Role::Admin);
    /// Keeps a job that belongs to no flow.
    CreateJob = "job.create" needs Need::Submit;
    /// Removes one.
    DeleteJob = "job.delete" needs Need::Own(Role::Executor);
    /// Keeps bytes.
    PutBlob = "blob.put" needs Need::Role(Role::Executor);
    /// Makes a flow.
    CreateFlow = "flow.create" needs Need::Submit;
    /// Gives it nodes.
    AddFlowNodes = "flow.add_nodes" needs Need::Own(Role::Executor);
    /// Starts it.
    StartFlow = "flow.start" needs Need::Own(Role::Executor);
    /// Starts it again.
    RetryFlow = "flow.retry" needs Need::Own(Role::Executor);
    /// Signals it.
    SignalFlow = "flow.signal" needs Need::Own(Role::Executor);
    /// Wishes that it ends.
    CancelFlow = "flow.cancel" needs Need::Own(Role::Executor);
    /// Wishes that one of its nodes ends.
    CancelNode = "flow.cancel_node" needs Need::Own(Role::Executor);
    /// Reports state and result of a node that it executes.
    ReportNode = "flow.report_node" needs Need::Own(Role::Executor);
    /// Removes it.
    DeleteFlow = "flow.delete" needs Need::Own(Role::Executor);
    /// Learns the key by which what runs for somebody is signed.
    ReadSigner = "signer.read" needs Need::Own(Role::Executor);
    /// Sends chat or mail.
    SendMessage = "message.send" needs Need::Own(Role::Executor);
    /// Sends again what would not arrive.
    ResendMessage = "message.resend" needs Need::Own(Role::Executor);
    /// Removes a message: its sender, its recipient.
    DeleteMessage = "message.delete" needs Need::Own(Role::Reader);
    /// Reads an inbox.
    ReadInbox = "inbox.read" needs Need::Own(Role::Reader);
    /// Takes messages out of it.
    AcknowledgeMessages = "message.acknowledge" needs Need::Own(Role::Reader);
    /// Registers a runner.
    RegisterRunner = "runner.register" needs Need::Role(Role::Admin);
    /// Changes its record.
    UpdateRunner = "runner.update" needs Need::Role(Role::Admin);
    /// Has it take no new jobs.
    DrainRunner = "runner.drain" needs Need::Role(Role::Admin);
    /// Has it take them again.
    ResumeRunner = "runner.resume" needs Need::Role(Role::Admin);
    /// Removes its record.
    DeleteRunner = "runner.delete" needs Need::Role(Role::Admin);
    /// Reads definitions, sagas, effects and dead letters.
    ReadSagas = "saga.read" needs Need::Role(Role::Reader);
    /// Starts sagas, sends them events and results.
    StartSaga = "saga.start" needs Need::Role(Role::Executor);
    /// Applies and retires definitions.
    DefineSagas = "saga.define" needs Need::Role(Role::Admin);
    /// Pauses, resumes, cancels, ends and mends sagas, effects and tenants.
    OperateSagas = "saga.operate" needs Need::Role(Role::Admin);
    /// Has dead letters and lanes processed again, or dead letters removed.
    ReplaySagas = "saga.replay" needs Need::Role(Role::Admin);
}

/// Whether `actor` may do what concerns the whole context, or what is its own.
///
/// # Errors
/// That there is no such context, or that the role is too small.
pub(crate) fn allow(context: &Context, actor: ActorId, action: Action) -> Result<()> {
    allow_for(context, actor, action, actor)
}

/// Whether `actor` may do what concerns what belongs to `owner`.
///
/// # Errors
/// As [`allow`], and that it may act only as itself.
pub(crate) fn allow_for(context: &Context, actor: ActorId, action: Action, owner: ActorId) -> Result<()> {
    let (needed, only_own) = match action.need() {
        Need::Role(role) => (role, false),
        Need::Own(role) => (role, true),
        Need::Submit if context.settings.executors_may_submit => (Role::Executor, true),
        Need::Submit => (Role::Admin, true),
    };
    let role = context.require(actor, needed)?;
    if only_own && role < Role::Admin && actor != owner {
        return Err(Denied::NotItself { actor, caller: owner, context: context.id }.into());
    }
    Ok(())
}

/// The same for whoever asks: a service that calls for itself may what its methods let it.
pub(crate) fn allow_asker(context: &Context, asker: Asker, action: Action, owner: ActorId) -> Result<()> {
    match asker {
        Asker::Service => Ok(()),
        Asker::Actor(actor) => allow_for(context, actor, action, owner),
    }
}

/// The same for what concerns the whole context, where nobody stands for the bootstrap identity, which administers them all.
pub(crate) fn allow_administrator(context: &Context, actor: Option<ActorId>, action: Action) -> Result<()> {
    actor.map_or(Ok(()), |actor| allow(context, actor, action))
}

/// Whether somebody may change an actor: itself, and the bootstrap identity, which is nobody here.
pub(crate) fn may_change_actor(asker: Option<ActorId>, actor: ActorId) -> bool {
    asker.is_none_or(|asker| asker == actor)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use model::context::ContextSettings;
    use model::{ContextId, ContextState, ContextUid, Revision, Timestamp};

    use super::*;
    use crate::error::Error;

    const ADMIN: ActorId = ActorId(1);
    const EXECUTOR: ActorId = ActorId(2);
    const READER: ActorId = ActorId(3);
    const STRANGER: ActorId = ActorId(4);

    fn context(executors_may_submit: bool) -> Context {
        Context {
            id: ContextId(7),
            uid: ContextUid::random(),
            state: ContextState::Active,
            admins: BTreeSet::from([ADMIN]),
            readers: BTreeSet::from([READER]),
            executors: BTreeSet::from([EXECUTOR]),
            settings: ContextSettings { executors_may_submit, ..ContextSettings::default() },
            created_at: Timestamp::default(),
            updated_at: Timestamp::default(),
            revision: Revision(1),
        }
    }

    /// What an actor is told: `+` yes, `-` that it may not, `?` that there is no such context.
    fn answer(context: &Context, actor: ActorId, action: Action, owner: ActorId) -> char {
        match allow_for(context, actor, action, owner) {
            Ok(()) => '+',
            Err(Error::Denied(_)) => '-',
            Err(Error::NotFound(_)) => '?',
            Err(error) => panic!("{error}"),
        }
    }

    /// The table of the page: action, then what it takes, then whose.
    fn table() -> BTreeMap<String, (String, String)> {
        let page = include_str!("../../../../specs/actions.md");
        let rows = page.lines().skip_while(|line| !line.starts_with("# What an action takes"));
        let rows = rows.skip(1).skip_while(|line| !line.starts_with("|--")).skip(1);
        let rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
            let cells: Vec<&str> =
                line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            (cells[0].to_owned(), (cells[1].to_owned(), cells[2].to_owned()))
        });
        rows.collect()
    }

    #[test]
    fn actions_take_what_the_page_says() {
        let said: BTreeMap<String, (String, String)> = Action::ALL
            .iter()
            .map(|action| {
                let (role, whose) = match action.need() {
                    Need::Role(role) => (role.to_string(), "the context's"),
                    Need::Own(role) => (role.to_string(), "its own"),
                    Need::Submit => ("executor, or admin by setting".to_owned(), "its own"),
                };
                (action.name().to_owned(), (role, whose.to_owned()))
            })
            .collect();
        assert_eq!(said.len(), Action::ALL.len(), "each has a name of its own");
        assert_eq!(said, table());
    }

    #[test]
    fn each_role_includes_the_next() {
        for action in Action::ALL {
            for open in [true, false] {
                let context = context(open);
                let own: String = [ADMIN, EXECUTOR, READER, STRANGER]
                    .map(|actor| answer(&context, actor, *action, actor))
                    .iter()
                    .collect();
                let expected = match action.need() {
                    Need::Role(Role::Reader) | Need::Own(Role::Reader) => "+++?",
                    Need::Role(Role::Executor) | Need::Own(Role::Executor) => "++-?",
                    Need::Submit if open => "++-?",
                    Need::Role(Role::Admin) | Need::Own(Role::Admin) | Need::Submit => "+--?",
                };
                assert_eq!(own, expected, "{action:?}");
                // An admin acts for everybody; others only as themselves, where it matters whose something is.
                assert_eq!(answer(&context, ADMIN, *action, EXECUTOR), '+', "{action:?}");
                let others = answer(&context, EXECUTOR, *action, READER);
                let concerns_all = matches!(action.need(), Need::Role(role) if role <= Role::Executor);
                assert_eq!(others, if concerns_all { '+' } else { '-' }, "{action:?}");
            }
        }
    }

    #[test]
    fn services_and_the_bootstrap_identity_have_no_roles_and_need_none() {
        let context = context(true);
        allow_asker(&context, Asker::Service, Action::DeleteFlow, EXECUTOR).expect("its methods let it");
        allow_administrator(&context, None, Action::UpdateContext).expect("it administers all");
        assert!(allow_administrator(&context, Some(EXECUTOR), Action::UpdateContext).is_err());
        assert!(may_change_actor(None, READER) && may_change_actor(Some(READER), READER));
        assert!(!may_change_actor(Some(ADMIN), READER));
    }
}
