//! Permissions of actors in a context: the one place where they are decided.
//!
//! The table is that of the specification, section 4. For an actor without a role, the context does not exist.

use model::context::AccessDenied;
use model::{ActorId, Context, Role};

use crate::error::Result;
use crate::store::RequestPrincipal;

/// Role that an action requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoleRequirement {
    /// Role for any object.
    Role(Role),
    /// Role for the actor's own objects; admin for those of others.
    Own(Role),
    /// `Own(Executor)` where executors may submit; else admin.
    Submit,
}

macro_rules! actions {
    ($($(#[$doc:meta])* $action:ident = $name:literal needs $need:expr;)+) => {
        /// Something that is done in a context, or to it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum ContextAction {
            $($(#[$doc])* $action),+
        }

        impl ContextAction {
            /// All of them.
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$action),+];

            /// Name of the action in the audit.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$action => $name),+ }
            }

            /// Role that the action requires.
            pub(crate) const fn need(self) -> RoleRequirement {
                match self { $(Self::$action => $need),+ }
            }
        }
    };
}

actions! {
    /// Reads what is in the context: the context itself, flows, nodes, jobs, blobs, logs, messages, runner records, events.
    Read = "context.read" needs RoleRequirement::Role(Role::Reader);
    /// Reads the audit.
    ReadAudit = "audit.read" needs RoleRequirement::Role(Role::Admin);
    /// Creates a context. Every actor may, and is its first admin.
    CreateContext = "context.create" needs RoleRequirement::Role(Role::Admin);
    /// Changes members and settings.
    UpdateContext = "context.update" needs RoleRequirement::Role(Role::Admin);
    /// Removes the context.
    DeleteContext = "context.delete" needs RoleRequirement::Role(Role::Admin);
    /// Exports the context with everything in it.
    ExportContext = "context.export" needs RoleRequirement::Role(Role::Admin);
    /// Imports a context: the bootstrap identity alone.
    ImportContext = "context.import" needs RoleRequirement::Role(Role::Admin);
    /// Repairs records of the context, or those outside contexts: the bootstrap identity alone.
    RepairContext = "context.repair" needs RoleRequirement::Role(Role::Admin);
    /// Registers an actor: the bootstrap identity alone.
    RegisterActor = "actor.register" needs RoleRequirement::Role(Role::Admin);
    /// Changes where an actor is reached: itself and the bootstrap identity.
    UpdateActor = "actor.update" needs RoleRequirement::Role(Role::Admin);
    /// Gives an actor another key: itself and the bootstrap identity.
    RotateActorKey = "actor.rotate_key" needs RoleRequirement::Role(Role::Admin);
    /// Removes an actor: itself and the bootstrap identity.
    DeleteActor = "actor.delete" needs RoleRequirement::Role(Role::Admin);
    /// Stores a job that belongs to no flow.
    CreateJob = "job.create" needs RoleRequirement::Submit;
    /// Removes such a job.
    DeleteJob = "job.delete" needs RoleRequirement::Own(Role::Executor);
    /// Stores bytes.
    PutBlob = "blob.put" needs RoleRequirement::Role(Role::Executor);
    /// Creates a flow.
    CreateFlow = "flow.create" needs RoleRequirement::Submit;
    /// Adds nodes to a flow.
    AddFlowNodes = "flow.add_nodes" needs RoleRequirement::Own(Role::Executor);
    /// Starts a flow.
    StartFlow = "flow.start" needs RoleRequirement::Own(Role::Executor);
    /// Runs an ended flow again.
    RetryFlow = "flow.retry" needs RoleRequirement::Own(Role::Executor);
    /// Signals a flow.
    SignalFlow = "flow.signal" needs RoleRequirement::Own(Role::Executor);
    /// Cancels a flow.
    CancelFlow = "flow.cancel" needs RoleRequirement::Own(Role::Executor);
    /// Cancels a node.
    CancelNode = "flow.cancel_node" needs RoleRequirement::Own(Role::Executor);
    /// Reports state and result of a node that it executes.
    ReportNode = "flow.report_node" needs RoleRequirement::Own(Role::Executor);
    /// Removes a flow.
    DeleteFlow = "flow.delete" needs RoleRequirement::Own(Role::Executor);
    /// Reads the keys with which an actor's submissions are signed.
    ReadSigner = "signer.read" needs RoleRequirement::Own(Role::Executor);
    /// Sends chat or mail.
    SendMessage = "message.send" needs RoleRequirement::Own(Role::Executor);
    /// Sends a dead letter again.
    ResendMessage = "message.resend" needs RoleRequirement::Own(Role::Executor);
    /// Removes a message: its sender, its recipient.
    DeleteMessage = "message.delete" needs RoleRequirement::Own(Role::Reader);
    /// Reads an inbox.
    ReadInbox = "inbox.read" needs RoleRequirement::Own(Role::Reader);
    /// Takes messages out of an inbox.
    AcknowledgeMessages = "message.acknowledge" needs RoleRequirement::Own(Role::Reader);
    /// Registers a runner.
    RegisterRunner = "runner.register" needs RoleRequirement::Role(Role::Admin);
    /// Changes a runner record.
    UpdateRunner = "runner.update" needs RoleRequirement::Role(Role::Admin);
    /// Drains a runner, which then takes no new jobs.
    DrainRunner = "runner.drain" needs RoleRequirement::Role(Role::Admin);
    /// Resumes a drained runner.
    ResumeRunner = "runner.resume" needs RoleRequirement::Role(Role::Admin);
    /// Removes a runner record.
    DeleteRunner = "runner.delete" needs RoleRequirement::Role(Role::Admin);
    /// Reads definitions, sagas, effects and dead letters.
    ReadSagas = "saga.read" needs RoleRequirement::Role(Role::Reader);
    /// Starts sagas, sends them events and results.
    StartSaga = "saga.start" needs RoleRequirement::Role(Role::Executor);
    /// Applies and retires definitions.
    DefineSagas = "saga.define" needs RoleRequirement::Role(Role::Admin);
    /// Pauses, resumes, cancels, ends and mends sagas, effects and tenants.
    OperateSagas = "saga.operate" needs RoleRequirement::Role(Role::Admin);
    /// Processes dead letters and lanes again, or removes dead letters.
    ReplaySagas = "saga.replay" needs RoleRequirement::Role(Role::Admin);
}

/// Checks that `actor` may perform an action on the whole context, or on its own objects.
///
/// # Errors
/// Fails when there is no such context for the actor, or when its role is too small.
pub(crate) fn allow(context: &Context, actor: ActorId, action: ContextAction) -> Result<()> {
    allow_for(context, actor, action, actor)
}

/// Checks that `actor` may act on objects that belong to `owner`.
///
/// # Errors
/// Fails as [`allow`] does, and when it may act only as itself.
pub(crate) fn allow_for(
    context: &Context,
    actor: ActorId,
    action: ContextAction,
    owner: ActorId,
) -> Result<()> {
    let (needed, only_own) = match action.need() {
        RoleRequirement::Role(role) => (role, false),
        RoleRequirement::Own(role) => (role, true),
        RoleRequirement::Submit if context.settings.executors_may_submit => (Role::Executor, true),
        RoleRequirement::Submit => (Role::Admin, true),
    };
    let role = context.require(actor, needed)?;
    if only_own && role < Role::Admin && actor != owner {
        return Err(AccessDenied::NotItself { actor, caller: owner, context: context.id }.into());
    }
    Ok(())
}

/// Checks a principal as [`allow_for`] does; a service that calls on its own behalf is limited only by its method policy.
pub(crate) fn allow_asker(
    context: &Context,
    asker: RequestPrincipal,
    action: ContextAction,
    owner: ActorId,
) -> Result<()> {
    match asker {
        RequestPrincipal::Service => Ok(()),
        RequestPrincipal::Actor(actor) => allow_for(context, actor, action, owner),
    }
}

/// Checks an administrator of the whole context: an actor, or for `None` the bootstrap identity, which administers all.
pub(crate) fn allow_administrator(
    context: &Context,
    actor: Option<ActorId>,
    action: ContextAction,
) -> Result<()> {
    actor.map_or(Ok(()), |actor| allow(context, actor, action))
}

/// Returns true if the principal may change an actor: the actor itself may, and for `None` the bootstrap identity.
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

    /// Outcome of a check: `+` allowed, `-` not allowed, `?` no such context.
    fn answer(context: &Context, actor: ActorId, action: ContextAction, owner: ActorId) -> char {
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
    fn actions_require_the_roles_that_the_page_lists() {
        let actual: BTreeMap<String, (String, String)> = ContextAction::ALL
            .iter()
            .map(|action| {
                let (role, whose) = match action.need() {
                    RoleRequirement::Role(role) => (role.to_string(), "the context's"),
                    RoleRequirement::Own(role) => (role.to_string(), "its own"),
                    RoleRequirement::Submit => ("executor, or admin by setting".to_owned(), "its own"),
                };
                (action.name().to_owned(), (role, whose.to_owned()))
            })
            .collect();
        assert_eq!(actual.len(), ContextAction::ALL.len(), "each has a name of its own");
        assert_eq!(actual, table());
    }

    #[test]
    fn each_role_includes_the_next() {
        for action in ContextAction::ALL {
            for open in [true, false] {
                let context = context(open);
                let own: String = [ADMIN, EXECUTOR, READER, STRANGER]
                    .map(|actor| answer(&context, actor, *action, actor))
                    .iter()
                    .collect();
                let expected = match action.need() {
                    RoleRequirement::Role(Role::Reader) | RoleRequirement::Own(Role::Reader) => "+++?",
                    RoleRequirement::Role(Role::Executor) | RoleRequirement::Own(Role::Executor) => "++-?",
                    RoleRequirement::Submit if open => "++-?",
                    RoleRequirement::Role(Role::Admin)
                    | RoleRequirement::Own(Role::Admin)
                    | RoleRequirement::Submit => "+--?",
                };
                assert_eq!(own, expected, "{action:?}");
                // An admin acts for every actor; others act only as themselves where ownership matters.
                assert_eq!(answer(&context, ADMIN, *action, EXECUTOR), '+', "{action:?}");
                let others = answer(&context, EXECUTOR, *action, READER);
                let concerns_all =
                    matches!(action.need(), RoleRequirement::Role(role) if role <= Role::Executor);
                assert_eq!(others, if concerns_all { '+' } else { '-' }, "{action:?}");
            }
        }
    }

    #[test]
    fn services_and_the_bootstrap_identity_have_no_roles_and_need_none() {
        let context = context(true);
        allow_asker(&context, RequestPrincipal::Service, ContextAction::DeleteFlow, EXECUTOR)
            .expect("its methods let it");
        allow_administrator(&context, None, ContextAction::UpdateContext).expect("it administers all");
        assert!(allow_administrator(&context, Some(EXECUTOR), ContextAction::UpdateContext).is_err());
        assert!(may_change_actor(None, READER) && may_change_actor(Some(READER), READER));
        assert!(!may_change_actor(Some(ADMIN), READER));
    }
}
