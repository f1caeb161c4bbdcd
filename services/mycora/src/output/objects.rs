//! Actors, contexts, jobs and what was done to them, as people read them.

use model::Timestamp;
use proto::convert::time as wire_time;
use proto::v1;

use super::{labels, table, time, usage};

/// How much of a script is shown.
const SCRIPT_LINES_MAX: usize = 20;
/// Characters of a key that are enough to tell it from others.
const KEY_CHARS: usize = 12;

/// An actor, and its keys.
#[must_use]
pub fn actor(actor: &v1::Actor) -> String {
    let v1::Actor { id, pubkey, address, home_context, create_time, update_time, keys, .. } = actor;
    let home = match home_context {
        0 => "none: messages to it have to name a context".to_owned(),
        id => id.to_string(),
    };
    let mut pairs = vec![
        ("actor", id.to_string()),
        ("key", pubkey.clone()),
        ("address", address_text(address)),
        ("home context", home),
        ("registered", moment(*create_time)),
        ("changed", moment(*update_time)),
    ];
    if let Some(since) = actor.certificates_not_before_time {
        pairs.push(("certificates", format!("count when issued from {} on", moment(Some(since)))));
    }
    let mut text = table::pairs(&pairs);
    if !keys.is_empty() {
        let rows: Vec<_> = keys.iter().map(key).collect();
        text.push('\n');
        text.push_str(&table::render(&["KEY", "FROM", "UNTIL"], &rows));
    }
    text
}

fn key(key: &v1::ActorKey) -> Vec<String> {
    let v1::ActorKey { key, not_before_time, revoke_time } = key;
    let until = revoke_time.map_or_else(|| "-".to_owned(), |time| moment(Some(time)));
    vec![key.clone(), moment(*not_before_time), until]
}

fn address_text(address: &[String]) -> String {
    if address.is_empty() { "here".to_owned() } else { address.join(", ") }
}

/// Describes the identity that we are taken for, and what we may do where.
#[must_use]
pub fn who_am_i(answer: &v1::WhoAmIResponse) -> String {
    let v1::WhoAmIResponse { spiffe_id, actor: known, roles, token_audience, expire_time, roles_truncated } =
        answer;
    let mut pairs = vec![("identity", spiffe_id.clone())];
    if expire_time.is_some() {
        pairs.push(("until", moment(*expire_time)));
    }
    if !token_audience.is_empty() {
        pairs.push(("tokens for", token_audience.clone()));
    }
    let mut text = table::pairs(&pairs);
    if let Some(known) = known {
        text.push('\n');
        text.push_str(&actor(known));
    }
    if !roles.is_empty() {
        let rows: Vec<_> =
            roles.iter().map(|role| vec![role.context_id.to_string(), role.role.clone()]).collect();
        text.push('\n');
        text.push_str(&table::render(&["CONTEXT", "ROLE"], &rows));
        if *roles_truncated {
            text.push_str("… and more: `mycora context list` shows them all\n");
        }
    }
    text
}

/// Several actors.
#[must_use]
pub fn actors(actors: &[v1::Actor]) -> String {
    let rows: Vec<_> = actors
        .iter()
        .map(|actor| {
            let home = Some(actor.home_context).filter(|id| *id != 0);
            vec![
                actor.id.to_string(),
                actor.pubkey.chars().take(KEY_CHARS).collect(),
                home.map_or_else(|| "-".to_owned(), |id| id.to_string()),
                address_text(&actor.address),
                moment(actor.create_time),
            ]
        })
        .collect();
    table::render(&["ID", "KEY", "HOME", "ADDRESS", "REGISTERED"], &rows)
}

/// A context, its members and its switches.
#[must_use]
pub fn context(context: &v1::Context) -> String {
    let v1::Context { id, uid, admins, executors, readers, settings, create_time, update_time, .. } = context;
    let v1::ContextSettings { executors_may_submit, raw_publish, require_signed_messages, retention } =
        settings.unwrap_or_default();
    let mut pairs = vec![
        ("context", id.to_string()),
        ("uid", uid.clone()),
        ("state", state(context.state()).to_owned()),
        ("admins", members(admins)),
        ("executors", members(executors)),
        ("readers", members(readers)),
        ("executors-may-submit", executors_may_submit.to_string()),
        ("raw-publish", raw_publish.to_string()),
        ("require-signed-messages", require_signed_messages.to_string()),
        ("created", moment(*create_time)),
        ("changed", moment(*update_time)),
    ];
    pairs.extend(usage::own_bounds(retention.unwrap_or_default()));
    table::pairs(&pairs)
}

/// Several contexts.
#[must_use]
pub fn contexts(contexts: &[v1::Context]) -> String {
    let rows: Vec<_> = contexts
        .iter()
        .map(|context| {
            vec![
                context.id.to_string(),
                state(context.state()).to_owned(),
                members(&context.admins),
                members(&context.executors),
                members(&context.readers),
                moment(context.create_time),
            ]
        })
        .collect();
    table::render(&["ID", "STATE", "ADMINS", "EXECUTORS", "READERS", "CREATED"], &rows)
}

const fn state(state: v1::ContextState) -> &'static str {
    match state {
        v1::ContextState::Unspecified => "unknown",
        v1::ContextState::Active => "active",
        v1::ContextState::Deleting => "being deleted",
    }
}

fn members(ids: &[u32]) -> String {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    if ids.is_empty() { "-".to_owned() } else { ids.join(", ") }
}

/// Lists audit records: who did what, and when.
#[must_use]
pub fn audit(entries: &[v1::AuditEntry]) -> String {
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| {
            let v1::AuditEntry { time, identity, action, object, .. } = entry;
            vec![moment(*time), identity.clone(), action.clone(), object.clone()]
        })
        .collect();
    table::render(&["TIME", "WHO", "DID", "TO"], &rows)
}

/// A job, and the beginning of its script.
#[must_use]
pub fn job(job: &v1::Job) -> String {
    let v1::Job { id, caller_id, context_id, spec, status, result_json, create_time, update_time, .. } = job;
    let spec = spec.clone().unwrap_or_default();
    let list = |texts: Vec<String>| if texts.is_empty() { "-".to_owned() } else { texts.join(", ") };
    let mut pairs = vec![
        ("job", id.to_string()),
        ("actor", caller_id.to_string()),
        ("context", context_id.to_string()),
        ("flow", flow_of(job)),
        ("status", labels::job_status(status).to_owned()),
        ("type", labels::script_type(spec.script_type()).to_owned()),
        ("env", list(spec.env_vars.keys().cloned().collect())),
        ("files", list(spec.files.keys().cloned().collect())),
        ("outputs", list(spec.outputs.clone())),
        ("created", moment(*create_time)),
        ("changed", moment(*update_time)),
    ];
    if !result_json.is_empty() {
        pairs.push(("result", table::shown_whole(result_json)));
    }
    let mut text = table::pairs(&pairs);
    match spec.script.and_then(|script| script.source) {
        Some(v1::script::Source::Text(script)) => {
            text.push('\n');
            for line in script.lines().take(SCRIPT_LINES_MAX) {
                text.push_str(&format!("  {}\n", table::shown(line)));
            }
            let more = script.lines().count().saturating_sub(SCRIPT_LINES_MAX);
            if more > 0 {
                text.push_str(&format!("  … and {}\n", labels::count(more, "more line", "more lines")));
            }
        }
        Some(v1::script::Source::Blob(blob)) => {
            text.push_str(&format!("\n  the script has {} bytes, SHA-256 {}\n", blob.size, blob.sha256));
        }
        None => {}
    }
    text
}

/// Several jobs.
#[must_use]
pub fn jobs(jobs: &[v1::Job], now: Timestamp) -> String {
    let rows: Vec<_> = jobs
        .iter()
        .map(|job| {
            let kind = job.spec.as_ref().map(v1::JobSpec::script_type).unwrap_or_default();
            vec![
                job.id.to_string(),
                job.caller_id.to_string(),
                flow_of(job),
                labels::script_type(kind).to_owned(),
                labels::job_status(&job.status).to_owned(),
                time::ago(now, job.create_time.map(wire_time::from_wire)),
            ]
        })
        .collect();
    table::render(&["ID", "ACTOR", "FLOW", "TYPE", "STATUS", "CREATED"], &rows)
}

fn flow_of(job: &v1::Job) -> String {
    if job.flow_id == 0 { "-".to_owned() } else { job.flow_id.to_string() }
}

fn moment(wire: Option<prost_types::Timestamp>) -> String {
    time::utc(wire_time::required(wire))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    #[test]
    fn an_actor_shows_its_keys_and_describes_absent_fields() {
        let text = actor(&v1::Actor { id: 2, pubkey: "ab".into(), ..Default::default() });
        assert!(text.contains("address       here\n") && text.contains("home context  none: "), "{text}");
        let keys = vec![
            v1::ActorKey { key: "cd".into(), not_before_time: at(0), revoke_time: at(1_800_000_000) },
            v1::ActorKey { key: "ab".into(), not_before_time: at(60), revoke_time: None },
        ];
        let text = actor(&v1::Actor { id: 2, pubkey: "ab".into(), keys, ..Default::default() });
        assert!(text.contains("cd   1970-01-01 00:00:00 UTC  2027-01-15 08:00:00 UTC\n"), "{text}");
        assert!(text.ends_with("ab   1970-01-01 00:01:00 UTC  -\n"), "{text}");
    }

    #[test]
    fn roles_stand_below_who_we_are() {
        let roles = vec![v1::ContextRole { context_id: 3, role: "reader".into() }];
        let answer =
            v1::WhoAmIResponse { spiffe_id: "spiffe://m/actor/1".into(), roles, ..Default::default() };
        let text = "identity  spiffe://m/actor/1\n\nCONTEXT  ROLE\n3        reader\n";
        assert_eq!(who_am_i(&answer), text);
        let more = v1::WhoAmIResponse { roles_truncated: true, ..answer };
        assert_eq!(who_am_i(&more), format!("{text}… and more: `mycora context list` shows them all\n"));
    }

    #[test]
    fn a_long_script_is_cut() {
        let source = Some(v1::script::Source::Text("x\n".repeat(30)));
        let spec = Some(v1::JobSpec { script: Some(v1::Script { source }), ..Default::default() });
        let text = job(&v1::Job { id: 1, spec, ..Default::default() });
        assert!(text.ends_with("  x\n  … and 10 more lines\n"), "{text}");
    }
}
