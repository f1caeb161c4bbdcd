//! Users of a NATS server that keeps tenants apart, and what each of them may do: as its configuration has it.
//!
//! The service may read the three streams, publish its own messages, and create its streams and consumers. A publisher may publish
//! events of one tenant only. It has its own inbox prefix, since the inboxes of the service receive messages of all tenants.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use model::TenantId;

use crate::lane::{AGGREGATE_EVENTS, WORKFLOW_COMMANDS, WORKFLOW_EVENTS};

/// Name of the service's user.
pub const SERVICE_USER: &str = "mycora-saga";
/// How names of variables begin that hold passwords in the server's environment.
const PASSWORD_PREFIX: &str = "MYCORA_NATS_";

/// A user, as a configuration has it.
struct NatsUser {
    about: String,
    name: String,
    publish: Vec<String>,
    subscribe: String,
}

/// Gives the block of a server's configuration that has the service's user and one for the publishers of each tenant; of the only
/// publishers where there are no tenants. Passwords are variables of the server's environment.
#[must_use]
pub fn nats_permissions(tenants: Option<&[TenantId]>) -> String {
    let mut users = vec![service(tenants.is_some())];
    match tenants {
        Some(tenants) => users.extend(tenants.iter().map(|tenant| {
            let name = format!("publisher-{tenant}");
            publisher(&format!("tenant {tenant}"), name, &format!("tenant.{tenant}."), tenant.as_str())
        })),
        None => users.push(publisher("aggregates", "publisher".to_owned(), "", "publisher")),
    }
    let mut text = "# Passwords are variables of the server's environment. A password that begins with a letter needs no quotes there.\n\
        authorization {\n  users = [\n"
        .to_owned();
    let mut variables = BTreeSet::new();
    for user in users {
        // Writing to a text cannot fail.
        let _ = user.write(&mut text, &mut variables);
    }
    text.push_str("  ]\n}\n");
    text
}

/// The service, in each of its roles.
fn service(has_tenants: bool) -> NatsUser {
    let start = if has_tenants { "tenant.*." } else { "" };
    let kinds = ["effect", "workflow", "effect_result", "workflow_event"];
    let mut publish: Vec<_> = kinds.iter().map(|kind| format!("{start}{kind}.*.*")).collect();
    publish
        .extend([WORKFLOW_COMMANDS, WORKFLOW_EVENTS].map(|stream| format!("$JS.API.STREAM.CREATE.{stream}")));
    for stream in [AGGREGATE_EVENTS, WORKFLOW_COMMANDS, WORKFLOW_EVENTS] {
        publish.extend([
            format!("$JS.API.STREAM.INFO.{stream}"),
            format!("$JS.API.STREAM.MSG.GET.{stream}"),
            format!("$JS.API.CONSUMER.CREATE.{stream}.>"),
            format!("$JS.API.CONSUMER.DELETE.{stream}.*"),
            format!("$JS.API.CONSUMER.INFO.{stream}.*"),
            format!("$JS.API.CONSUMER.LIST.{stream}"),
            format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.*"),
            format!("$JS.ACK.{stream}.>"),
        ]);
    }
    // Owners of lanes answer other replicas.
    publish.push("_INBOX.>".to_owned());
    let about = "The saga service and `mycora doctor`.".to_owned();
    NatsUser { about, name: SERVICE_USER.to_owned(), publish, subscribe: "_INBOX.>".to_owned() }
}

/// Makes the NATS user for publishers of aggregate events.
fn publisher(whose: &str, name: String, start: &str, inbox: &str) -> NatsUser {
    let inbox = format!("_INBOX_{inbox}");
    NatsUser {
        about: format!("Publishers of {whose}. Their clients have the inbox prefix {inbox}."),
        name,
        publish: vec![format!("{start}aggregate.*.*")],
        subscribe: format!("{inbox}.>"),
    }
}

impl NatsUser {
    fn write(&self, text: &mut String, variables: &mut BTreeSet<String>) -> std::fmt::Result {
        let Self { about, name, publish, subscribe } = self;
        let mut variable = PASSWORD_PREFIX.to_owned();
        variable.extend(name.chars().map(|char| if char == '-' { '_' } else { char.to_ascii_uppercase() }));
        // Two names may differ in nothing that a variable can have.
        while !variables.insert(variable.clone()) {
            variable.push('_');
        }
        writeln!(
            text,
            "    # {about}\n    {{\n      user: \"{name}\", password: ${variable}\n      permissions: {{"
        )?;
        writeln!(text, "        publish: [")?;
        for subject in publish {
            writeln!(text, "          \"{subject}\"")?;
        }
        writeln!(text, "        ]\n        subscribe: [\"{subscribe}\"]\n      }}\n    }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants(names: &[&str]) -> Vec<TenantId> {
        names.iter().map(|name| name.parse().expect("a tenant")).collect()
    }

    #[test]
    fn each_user_has_a_variable_of_its_own_and_subjects_of_one_tenant() {
        let text = nats_permissions(Some(&tenants(&["a-b", "a_b", "A_b"])));
        let variables: Vec<_> =
            text.lines().filter_map(|line| line.split_once("password: ")).map(|(_, v)| v).collect();
        assert_eq!(
            variables,
            [
                "$MYCORA_NATS_MYCORA_SAGA",
                "$MYCORA_NATS_PUBLISHER_A_B",
                "$MYCORA_NATS_PUBLISHER_A_B_",
                "$MYCORA_NATS_PUBLISHER_A_B__"
            ]
        );
        assert!(
            text.contains("\"tenant.a-b.aggregate.*.*\"") && text.contains("[\"_INBOX_a-b.>\"]"),
            "{text}"
        );
        let single = nats_permissions(None);
        assert!(single.contains("\"aggregate.*.*\"") && !single.contains("tenant."), "{single}");
    }
}
