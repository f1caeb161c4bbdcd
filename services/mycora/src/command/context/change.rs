//! `mycora context create` and `update`: members and switches.

use clap::{Args, ValueEnum};
use proto::v1;
use uuid::Uuid;

use super::retention::{self, RetentionBound};
use crate::command::{CliSession, values};
use crate::failure::CliError;
use crate::output::{self, json, objects};

pub(super) const CREATE_HELP: &str = "\
Each role includes the next: admins do everything, executors run flows of their own, readers read. The admin identity is not an actor, so it must name one with --admin.

Examples:
  mycora context create --executor 2 --reader 3 --reader 4
  mycora context create --id 7 --admin 1 --as admin";

pub(super) const UPDATE_HELP: &str = "\
For admins of the context; the last admin cannot be removed.

Examples:
  mycora context update 3 --add-executor 5 --remove-reader 5
  mycora context update 3 --set executors-may-submit=false --set require-signed-messages=true
  mycora context update 3 --keep ended-flow-keep-secs=7d --keep ended-flow-bytes-max=256MiB";

/// Arguments of `context create`.
#[derive(Debug, Args)]
pub struct ContextCreateArgs {
    /// The context's number [default: the coordinator chooses]
    #[arg(long, value_name = "ID", value_parser = values::id)]
    pub id: Option<u32>,
    /// A further admin besides yourself; may be repeated, as may the next two
    #[arg(long = "admin", value_name = "ACTOR", value_parser = values::id)]
    pub admins: Vec<u32>,
    /// An actor that may run flows of its own
    #[arg(long = "executor", value_name = "ACTOR", value_parser = values::id)]
    pub executors: Vec<u32>,
    /// An actor that may look
    #[arg(long = "reader", value_name = "ACTOR", value_parser = values::id)]
    pub readers: Vec<u32>,
    /// Only admins make flows
    #[arg(long)]
    pub no_executors_submit: bool,
    /// Take messages from programs that push them to Redis
    #[arg(long)]
    pub raw_publish: bool,
    /// Refuse chat and mail that its sender has not signed
    #[arg(long)]
    pub require_signed: bool,
}

/// Arguments of `context update`.
#[derive(Debug, Args)]
pub struct ContextUpdateArgs {
    /// The context's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Changes to the context.
    #[command(flatten)]
    pub change: ContextChangeFlags,
}

/// Changes to a context: at least one.
#[derive(Debug, Clone, Default, Args)]
#[group(required = true, multiple = true)]
pub struct ContextChangeFlags {
    /// Let an actor do everything; may be repeated, as may the others
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub add_admin: Vec<u32>,
    /// Take that from an actor
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub remove_admin: Vec<u32>,
    /// Let an actor run flows of its own
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub add_executor: Vec<u32>,
    /// Take that from an actor
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub remove_executor: Vec<u32>,
    /// Let an actor look
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub add_reader: Vec<u32>,
    /// Take that from an actor
    #[arg(long, value_name = "ACTOR", value_parser = values::id)]
    pub remove_reader: Vec<u32>,
    /// Turn a switch: executors-may-submit, raw-publish or require-signed-messages, to true or false
    #[arg(long = "set", value_name = "NAME=BOOL", value_parser = setting)]
    pub settings: Vec<(ContextSwitch, bool)>,
    /// Bound what is kept of what has ended, as in ended-flow-keep-secs=7d, ended-flows-max=1000, ended-flow-bytes-max=256MiB,
    /// message-keep-secs=7d, messages-done-max=1000 or events-keep-secs=1d; 0 leaves a bound at the coordinator's, which is
    /// also the greatest
    #[arg(long = "keep", value_name = "NAME=VALUE", value_parser = retention::bound)]
    pub bounds: Vec<(RetentionBound, u64)>,
}

/// A switch of a context, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ContextSwitch {
    /// Executors may make flows.
    ExecutorsMaySubmit,
    /// Programs may push messages to Redis.
    RawPublish,
    /// Chat and mail must be signed.
    RequireSignedMessages,
}

fn setting(text: &str) -> Result<(ContextSwitch, bool), String> {
    let (name, value) = values::entry(text)?;
    let setting = ContextSwitch::from_str(&name.replace('_', "-"), false)
        .map_err(|_| "there are executors-may-submit, raw-publish and require-signed-messages".to_owned())?;
    let value = value.parse().map_err(|_| "it is true or false".to_owned())?;
    Ok((setting, value))
}

pub(super) async fn create(session: &CliSession, args: &ContextCreateArgs) -> Result<(), CliError> {
    let answer = session.clients.create_context(&wanted(args)).await?;
    let text = || objects::context(&answer.context.clone().unwrap_or_default());
    output::answer(session.global.output, || json::of(&answer), text)
}

fn wanted(args: &ContextCreateArgs) -> v1::CreateContextRequest {
    let ContextCreateArgs {
        id,
        admins,
        executors,
        readers,
        no_executors_submit,
        raw_publish,
        require_signed,
    } = args;
    // Settings that are not given keep the coordinator's defaults.
    let has_settings = *no_executors_submit || *raw_publish || *require_signed;
    v1::CreateContextRequest {
        request_id: Uuid::new_v4().to_string(),
        id: id.unwrap_or_default(),
        admins: admins.clone(),
        readers: readers.clone(),
        executors: executors.clone(),
        settings: has_settings.then_some(v1::ContextSettings {
            executors_may_submit: !no_executors_submit,
            raw_publish: *raw_publish,
            require_signed_messages: *require_signed,
            retention: None,
        }),
    }
}

/// Reads the context first, since lists are replaced as a whole; the revision keeps concurrent changes from being lost.
pub(super) async fn update(session: &CliSession, args: &ContextUpdateArgs) -> Result<(), CliError> {
    let now = session.clients.get_context(args.id).await?.context.unwrap_or_default();
    let answer = session.clients.update_context(&changed(args, now)?).await?;
    let text = || objects::context(&answer.context.clone().unwrap_or_default());
    output::answer(session.global.output, || json::of(&answer), text)
}

/// Builds the update request: the requested changes on top of the context as it is now.
fn changed(args: &ContextUpdateArgs, now: v1::Context) -> Result<v1::UpdateContextRequest, CliError> {
    let ContextUpdateArgs { id, change } = args;
    let mut settings = now.settings.unwrap_or_default();
    for (setting, value) in &change.settings {
        *match setting {
            ContextSwitch::ExecutorsMaySubmit => &mut settings.executors_may_submit,
            ContextSwitch::RawPublish => &mut settings.raw_publish,
            ContextSwitch::RequireSignedMessages => &mut settings.require_signed_messages,
        } = *value;
    }
    for (bound, value) in &change.bounds {
        bound.set(settings.retention.get_or_insert_default(), *value);
    }
    let changes_settings = !change.settings.is_empty() || !change.bounds.is_empty();
    Ok(v1::UpdateContextRequest {
        request_id: Uuid::new_v4().to_string(),
        context_id: *id,
        expected_revision: now.revision,
        admins: members("admin", now.admins, &change.add_admin, &change.remove_admin)?,
        readers: members("reader", now.readers, &change.add_reader, &change.remove_reader)?,
        executors: members("executor", now.executors, &change.add_executor, &change.remove_executor)?,
        settings: changes_settings.then_some(settings),
    })
}

/// The list as it is to be; nothing when it stays.
fn members(
    role: &str,
    mut now: Vec<u32>,
    add: &[u32],
    remove: &[u32],
) -> Result<Option<v1::ActorList>, CliError> {
    if add.is_empty() && remove.is_empty() {
        return Ok(None);
    }
    if let Some(both) = add.iter().find(|id| remove.contains(id)) {
        return Err(CliError::Invalid(format!(
            "--add-{role} {both} and --remove-{role} {both}: which of them?"
        )));
    }
    // A number that was mistyped must not pass for a removal.
    if let Some(stranger) = remove.iter().find(|id| !now.contains(id)) {
        return Err(CliError::Failed(format!("actor {stranger} is no {role} of the context")));
    }
    now.retain(|id| !remove.contains(id));
    for id in add {
        if !now.contains(id) {
            now.push(*id);
        }
    }
    Ok(Some(v1::ActorList { ids: now }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct ContextUpdateLine {
        #[command(flatten)]
        args: ContextUpdateArgs,
    }

    fn context() -> v1::Context {
        let settings = v1::ContextSettings { executors_may_submit: true, ..Default::default() };
        v1::Context {
            id: 3,
            admins: vec![1],
            readers: vec![4, 5],
            settings: Some(settings),
            revision: 9,
            ..Default::default()
        }
    }

    fn parse_update(flags: &[&str]) -> Result<v1::UpdateContextRequest, CliError> {
        let args =
            ContextUpdateLine::try_parse_from([&["update", "3"], flags].concat()).expect("good flags").args;
        changed(&args, context())
    }

    #[test]
    fn what_is_not_named_stays() {
        let request =
            parse_update(&["--add-reader", "6", "--add-reader", "4", "--remove-reader", "5"]).expect("good");
        assert_eq!(request.readers, Some(v1::ActorList { ids: vec![4, 6] }));
        assert_eq!((request.context_id, request.expected_revision), (3, 9));
        assert_eq!((request.admins, request.executors, request.settings), (None, None, None));

        let request = parse_update(&["--set", "raw_publish=true"]).expect("good");
        let settings = request.settings.expect("switches");
        assert!(settings.executors_may_submit && settings.raw_publish && !settings.require_signed_messages);
        assert_eq!(request.readers, None);

        let request =
            parse_update(&["--keep", "ended-flows-max=9", "--keep", "events-keep-secs=1d"]).expect("good");
        let settings = request.settings.expect("switches");
        assert!(settings.executors_may_submit, "as it was");
        let kept = settings.retention.expect("bounds");
        assert_eq!((kept.ended_flows_max, kept.events_keep_secs, kept.messages_done_max), (9, 86_400, 0));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |flags: &[&str]| parse_update(flags).expect_err("refused").to_string();
        assert!(refused(&["--remove-admin", "7"]).contains("actor 7 is no admin"));
        assert!(refused(&["--add-executor", "7", "--remove-executor", "7"]).contains("which of them"));
        for wrong in [&["--set", "x=true"][..], &["--set", "raw-publish=1"], &["--set", "raw-publish"], &[]] {
            assert!(
                ContextUpdateLine::try_parse_from([&["update", "3"], wrong].concat()).is_err(),
                "{wrong:?}"
            );
        }
    }
}
