//! `mycora doctor --deep`: records that break an invariant, and their repair.

use std::io;

use proto::v1;
use rpc::RpcReason;

use super::{DoctorArgs, Finding};
use crate::clients::Clients;
use crate::command::GlobalFlags;
use crate::command::context::moving_progress::MovingProgress;
use crate::failure::{ApiCallError, CliError};
use crate::output::{self, OutputFormat};
use crate::profile::Profile;

/// Findings that are listed before the question whether to repair them.
const LISTED_MAX: usize = 20;
/// Advice to callers without the right to check records.
const USE_ADMIN: &str = "use the bootstrap identity: --as admin";
/// Number that stands for what belongs to no context.
const OUTSIDE: u32 = 0;

/// Result of the check of one context.
struct RecordCheck {
    context: u32,
    keys: u64,
    findings: Vec<v1::ContextFinding>,
    totals: v1::ContextCheckTotals,
}

/// Checks the records of the contexts, and repairs them where that is confirmed.
///
/// # Errors
/// When a repair is neither confirmed nor can be asked for, and on Ctrl-C.
pub(super) async fn look(
    args: &DoctorArgs,
    global: &GlobalFlags,
    profile: &Profile,
) -> Result<Vec<Finding>, CliError> {
    tokio::select! {
        findings = check_all(args, global, profile) => findings,
        pressed = tokio::signal::ctrl_c() => Err(match pressed {
            Ok(()) => CliError::Interrupted("interrupted; what was repaired stays so, and the rest is as it was".to_owned()),
            Err(error) => CliError::Failed(format!("cannot wait for Ctrl-C: {error}")),
        }),
    }
}

async fn check_all(
    args: &DoctorArgs,
    global: &GlobalFlags,
    profile: &Profile,
) -> Result<Vec<Finding>, CliError> {
    let clients = Clients::new(profile)?;
    let (contexts, mut findings) = match contexts_of(&clients, global).await {
        Ok(contexts) => contexts,
        Err(error) => return Ok(vec![of_refusal("records", error)]),
    };
    let repairs_at_once = args.repair && args.yes;
    let mut checked = Vec::new();
    for context in contexts {
        match check(&clients, context, repairs_at_once, global.quiet).await {
            Ok(check) => checked.push(check),
            Err(error) => findings.push(of_refusal(&name_of(context), error)),
        }
    }
    if !repairs_at_once && wants_repair(args, global, &checked).await? {
        for before in &mut checked {
            if before.totals.repairable == 0 {
                continue;
            }
            match check(&clients, before.context, true, global.quiet).await {
                Ok(after) => *before = after,
                Err(error) => findings.push(of_refusal(&name_of(before.context), error)),
            }
        }
    }
    findings.extend(checked.into_iter().flat_map(RecordCheck::into_findings));
    Ok(findings)
}

/// Contexts to check, and findings about those that cannot be checked.
async fn contexts_of(
    clients: &Clients,
    global: &GlobalFlags,
) -> Result<(Vec<u32>, Vec<Finding>), ApiCallError> {
    if let Some(context) = global.context {
        return Ok((vec![context], Vec::new()));
    }
    let (mut contexts, mut findings) = (vec![OUTSIDE], Vec::new());
    for context in clients.list_contexts().await?.contexts {
        match context.state() {
            v1::ContextState::Deleting => {
                findings.push(Finding::ok(name_of(context.id), "is being deleted, and was not checked"));
            }
            _ => contexts.push(context.id),
        }
    }
    Ok((contexts, findings))
}

async fn check(
    clients: &Clients,
    context: u32,
    repair: bool,
    is_quiet: bool,
) -> Result<RecordCheck, ApiCallError> {
    let request = v1::CheckContextRequest { context_id: context, repair };
    let mut answers = clients.check_context(request).await?;
    let mut progress = MovingProgress::new(is_quiet, "checking");
    let mut check = RecordCheck { context, keys: 0, findings: Vec::new(), totals: Default::default() };
    let mut is_complete = false;
    while let Some(answer) = answers.next().await? {
        let v1::CheckContextResponse { keys, findings, totals } = answer;
        progress.count(&name_of(context), keys);
        check.keys = keys;
        check.findings.extend(findings);
        if let Some(totals) = totals {
            check.totals = totals;
            is_complete = true;
        }
    }
    if is_complete {
        return Ok(check);
    }
    Err(tonic::Status::unavailable("the check broke off: begin it anew").into())
}

/// Returns true if findings are to be repaired, which is asked at a terminal.
async fn wants_repair(
    args: &DoctorArgs,
    global: &GlobalFlags,
    checked: &[RecordCheck],
) -> Result<bool, CliError> {
    let repairable: u64 = checked.iter().map(|check| check.totals.repairable).sum();
    if repairable == 0 {
        return Ok(false);
    }
    if !output::terminal::can_ask() || (!args.repair && global.output != OutputFormat::Table) {
        return match args.repair {
            true => Err(CliError::Invalid(format!(
                "this repairs {}; list what is wrong with `mycora doctor --deep`, and confirm with --yes",
                count_of(repairable)
            ))),
            false => Ok(false),
        };
    }
    let all = checked.iter().flat_map(|check| check.findings.iter().map(|finding| (check.context, finding)));
    let listed: Vec<_> = all.filter(|(_, finding)| finding.can_be_repaired).take(LISTED_MAX).collect();
    for (context, finding) in &listed {
        let v1::ContextFinding { key, problem, repair, .. } = finding;
        output::note(&format!("{} {key}: {problem}; {repair}", name_of(*context)));
    }
    let more = repairable.saturating_sub(listed.len() as u64);
    if more > 0 {
        output::note(&format!("and {more} more"));
    }
    ask(&format!("Repair {}? [y/N]", count_of(repairable))).await
}

fn count_of(records: u64) -> String {
    if records == 1 { "1 record".to_owned() } else { format!("{records} records") }
}

/// Asks a question at the terminal. Anything but a yes is a no.
async fn ask(question: &str) -> Result<bool, CliError> {
    let unasked = |error: io::Error| CliError::Failed(format!("cannot ask at the terminal: {error}"));
    output::note(question);
    let (answer, answered) = tokio::sync::oneshot::channel();
    // A thread of its own, which does not hold up the end of the process while it waits for a line.
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line).map(|_| line);
        // After Ctrl-C the receiver is gone.
        let _ = answer.send(read);
    });
    let line = answered.await.map_err(|_| CliError::Failed("the terminal was closed".to_owned()))?;
    Ok(is_yes(&line.map_err(unasked)?))
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

fn name_of(context: u32) -> String {
    if context == OUTSIDE { "actors and contexts".to_owned() } else { format!("context {context}") }
}

/// Finding about a check that was refused or broke off.
fn of_refusal(check: &str, error: ApiCallError) -> Finding {
    let is_forbidden = error.view.reason == RpcReason::MethodNotAllowed.as_str();
    let failure = CliError::from(error);
    if is_forbidden {
        return Finding::fail(check, "only the bootstrap identity may check records", USE_ADMIN);
    }
    Finding::of_failure(check, &failure.to_string())
}

impl RecordCheck {
    fn into_findings(self) -> Vec<Finding> {
        let Self { context, keys, findings: found, totals } = self;
        let v1::ContextCheckTotals { findings: count, repairable: _, repaired, uncounted } = totals;
        let name = name_of(context);
        let summary = match (count, repaired) {
            (0, _) => format!("{keys} keys, and no record that breaks an invariant"),
            (1, 0) => format!("{keys} keys, 1 finding"),
            (count, 0) => format!("{keys} keys, {count} findings"),
            (count, repaired) => format!("{keys} keys, {count} findings, {repaired} of them repaired"),
        };
        let mut findings = vec![if count > repaired {
            Finding::fail(&name, summary, "")
        } else {
            Finding::ok(&name, summary)
        }];
        if !uncounted.is_empty() {
            let found = format!("not counted, since the context changed meanwhile: {}", uncounted.join(", "));
            findings.push(Finding::warn(&name, found, "check again while less goes on"));
        }
        let sent = found.len() as u64;
        findings.extend(found.iter().map(|finding| of_record(&name, finding)));
        if count > sent {
            findings.push(Finding::fail(&name, format!("{} more findings are not shown", count - sent), ""));
        }
        findings
    }
}

fn of_record(name: &str, finding: &v1::ContextFinding) -> Finding {
    let code = finding.code().as_str_name().trim_start_matches("CONTEXT_FINDING_CODE_");
    let v1::ContextFinding { code: _, key, problem, can_be_repaired, is_repaired, repair } = finding;
    let check = format!("{name} {key}");
    let found = format!("{code}: {problem}");
    match (can_be_repaired, is_repaired) {
        (_, true) => Finding::ok(check, format!("{found} (repaired: {repair})")),
        (true, false) => {
            let advice = format!("repair with `mycora doctor --deep --repair --as admin`: {repair}");
            Finding::fail(check, found, advice)
        }
        (false, false) => {
            let advice = "no repair keeps everything here: `specs/operations.md`, \"Checking records\", says what to do";
            Finding::fail(check, found, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingLevel;
    use super::*;

    fn found(can_be_repaired: bool, is_repaired: bool) -> v1::ContextFinding {
        v1::ContextFinding {
            code: v1::ContextFindingCode::FlowAsleep.into(),
            key: "flow:7".to_owned(),
            problem: "inputs wait".to_owned(),
            can_be_repaired,
            is_repaired,
            repair: "it is woken".to_owned(),
        }
    }

    #[test]
    fn what_was_repaired_is_well() {
        let levels = |is_repaired: bool| {
            let totals = v1::ContextCheckTotals {
                findings: 1,
                repairable: 1,
                repaired: is_repaired.into(),
                uncounted: Vec::new(),
            };
            let findings = vec![found(true, is_repaired)];
            let check = RecordCheck { context: 3, keys: 9, findings, totals };
            check.into_findings().into_iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        assert_eq!(levels(true), [FindingLevel::Ok; 2]);
        assert_eq!(levels(false), [FindingLevel::Fail; 2]);
    }

    #[test]
    fn a_finding_names_its_code_its_key_and_the_way_out() {
        let finding = of_record("context 3", &found(true, false));
        assert_eq!((&*finding.check, &*finding.found), ("context 3 flow:7", "FLOW_ASLEEP: inputs wait"));
        assert!(
            finding.advice.contains("--repair") && finding.advice.ends_with("it is woken"),
            "{finding:?}"
        );
        assert!(!of_record("context 3", &found(false, false)).advice.contains("--repair"));
    }

    #[test]
    fn anything_but_a_yes_is_a_no() {
        assert!(["y\n", "YES\n", " yes"].iter().all(|line| is_yes(line)));
        assert!(!["", "\n", "n\n", "yesterday\n"].iter().any(|line| is_yes(line)));
    }
}
