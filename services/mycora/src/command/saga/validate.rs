//! `mycora saga validate`: what is wrong with manifests, without a server or by one.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use proto::v1;
use saga::rpc::wire;
use workflow::catalog::{Catalog, ManifestDraft};
use workflow::manifest::MANIFEST_BYTES_MAX;

use super::scope::SagaCommandScope;
use crate::command::values;
use crate::failure::CliError;
use crate::output::{self, OutputFormat, json, labels};

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
Without --remote the files are checked together, without a server: the effects that sagas order must have providers in these files. If no file has a provider, effects are not checked. With --remote the server checks each file against what is in force for the tenant, including the operator's providers; this needs the role reader.

Each problem is reported as file:line:column: message, and the exit code is then 2. With --output json problems and definitions are one document.

Examples:
  mycora saga validate order-fulfilment.yaml
  mycora saga validate manifests/
  mycora saga validate order-fulfilment.yaml --remote --tenant acme";

/// Arguments of `saga validate`.
#[derive(Debug, Args)]
pub struct SagaValidateArgs {
    /// Manifests, YAML; `-` for standard input, a directory for all that end in .yaml or .yml there
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<String>,
    /// Check on the profile's server, against what is in force there
    #[arg(long)]
    pub remote: bool,
}

/// Checks manifests without a server; gives the exit code.
pub(super) fn alone(args: &SagaValidateArgs, format: OutputFormat) -> Result<u8, CliError> {
    let checked = check(&read_all(&args.files)?);
    if let Some(line) = checked.left_out() {
        output::note(&line);
    }
    print_answer(format, &checked.answer)
}

/// Has the server check manifests, each by itself; gives the exit code.
pub(super) async fn remote(scope: &SagaCommandScope<'_>, args: &SagaValidateArgs) -> Result<u8, CliError> {
    let mut all = v1::ValidateSagaResponse::default();
    for file in read_all(&args.files)? {
        let request = v1::ValidateSagaRequest { tenant_id: scope.tenant_id.clone(), file: Some(file) };
        let answer = scope.clients().validate_saga(&request).await?;
        all.problems.extend(answer.problems);
        all.definitions.extend(answer.definitions);
    }
    print_answer(scope.format(), &all)
}

/// Reads a manifest as it is sent.
pub(super) fn read(path: &str) -> Result<v1::ManifestFile, CliError> {
    let text = values::text_of(path, MANIFEST_BYTES_MAX, "a manifest")?;
    let name = if path == "-" { "stdin" } else { path };
    Ok(v1::ManifestFile { name: name.to_owned(), text })
}

fn read_all(paths: &[String]) -> Result<Vec<v1::ManifestFile>, CliError> {
    let mut files = Vec::new();
    for path in paths {
        if !Path::new(path).is_dir() {
            files.push(read(path)?);
            continue;
        }
        let unreadable =
            |error: std::io::Error| CliError::Invalid(format!("{path}: cannot be read: {error}"));
        let entries = std::fs::read_dir(path).map_err(unreadable)?;
        let found: Result<Vec<_>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut found = found.map_err(unreadable)?;
        let is_yaml = |path: &Path| path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        found.retain(|path| is_yaml(path) && path.is_file());
        found.sort();
        for path in found {
            let file = read(&path.display().to_string())?;
            // Others lie beside manifests, such as the flow files that they name.
            if file.text.lines().any(|line| line.starts_with("kind:")) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// Result of a validation without a server.
struct LocalValidation {
    answer: v1::ValidateSagaResponse,
    /// Effects that were not looked for.
    effects: usize,
}

impl LocalValidation {
    /// Notes how many effects were not checked; nothing when problems were found.
    fn left_out(&self) -> Option<String> {
        let effects = labels::count(self.effects, "effect was", "effects were");
        (self.effects > 0 && self.answer.problems.is_empty()).then(|| {
            format!(
                "{effects} not looked for, since no file has a provider; name the files of providers as well, or give --remote"
            )
        })
    }
}

fn check(files: &[v1::ManifestFile]) -> LocalValidation {
    let mut answer = v1::ValidateSagaResponse::default();
    let mut drafts: Vec<_> =
        files.iter().map(|v1::ManifestFile { name, text }| ManifestDraft::read(name, text)).collect();
    let mut effects = 0;
    if !drafts.iter().any(ManifestDraft::may_provide) {
        effects = drafts.iter_mut().map(ManifestDraft::take_orders).sum();
    }
    match Catalog::of(&drafts, &Catalog::default(), &[]) {
        Ok(catalog) => answer.definitions = catalog.sagas().map(|saga| wire::definition(saga)).collect(),
        Err(found) => answer.problems.extend(found.iter().flat_map(wire::problems)),
    }
    LocalValidation { answer, effects }
}

/// Prints what was found; the exit code is 2 when something is wrong.
fn print_answer(format: OutputFormat, answer: &v1::ValidateSagaResponse) -> Result<u8, CliError> {
    let text = problems_text(&answer.problems);
    match (format, answer.problems.is_empty()) {
        (OutputFormat::Table, false) => Err(CliError::Invalid(text.trim_end().to_owned())),
        (_, is_good) => {
            let good = || answer.definitions.iter().map(good_line).collect();
            output::answer(format, || json::of(answer), good)?;
            Ok(if is_good { 0 } else { 2 })
        }
    }
}

/// Problems, each as `file:line:column: message` in a line.
pub(super) fn problems_text(problems: &[v1::ManifestProblem]) -> String {
    let mut text = String::new();
    for v1::ManifestProblem { file, line, column, message } in problems {
        let place = if *line == 0 { String::new() } else { format!("{line}:{column}:") };
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{file}:{place} {message}");
    }
    text
}

fn good_line(definition: &v1::SagaDefinition) -> String {
    let v1::SagaDefinition { saga, version, steps, effects, .. } = definition;
    let steps = labels::count(steps.len(), "step", "steps");
    let effects = labels::count(effects.len(), "effect", "effects");
    format!("the saga `{saga}`, version {version}, is good: {steps}, {effects}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../../libs/workflow/src/manifest/example.yaml");

    fn file(name: &str, text: &str) -> v1::ManifestFile {
        v1::ManifestFile { name: name.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn sagas_are_checked_against_the_providers_that_are_given() {
        let (saga, providers) = EXAMPLE.split_once("\n---\n").expect("several documents");
        let whole = check(&[file("all.yaml", EXAMPLE)]);
        assert_eq!((whole.answer.problems.len(), whole.answer.definitions.len(), whole.effects), (0, 1, 0));
        let apart = check(&[file("saga.yaml", saga), file("providers.yaml", providers)]);
        assert_eq!(apart.answer, whole.answer);
        assert_eq!(whole.answer.definitions[0].start_event_types, ["OrderPlaced"]);

        let alone = check(&[file("saga.yaml", saga)]);
        assert_eq!(alone.answer.problems, []);
        assert!(alone.left_out().is_some_and(|line| line.contains("effects were not looked for")));

        let misspelled = saga.replacen("effect: payment-reserve", "effect: payment-reserv", 1);
        let wrong = check(&[file("saga.yaml", &misspelled), file("providers.yaml", providers)]);
        let text = problems_text(&wrong.answer.problems);
        assert!(text.starts_with("saga.yaml:") && text.contains("did you mean `payment-reserve`?"), "{text}");
        assert_eq!(wrong.left_out(), None);
    }

    #[test]
    fn every_problem_has_its_place() {
        let checked = check(&[file("a.yaml", "kind: Saga\nname: a_b\n"), file("b.yaml", "kind: Sagga\n")]);
        let text = problems_text(&checked.answer.problems);
        assert!(text.contains("a.yaml:2:7: ") && text.contains("b.yaml:1:7: there is no kind"), "{text}");
        let refused = print_answer(OutputFormat::Table, &checked.answer).expect_err("it is told");
        assert_eq!(refused.exit_code(), 2);
    }

    #[test]
    fn problems_within_a_file_and_across_files_are_reported_together() {
        let (saga, providers) = EXAMPLE.split_once("\n---\n").expect("several documents");
        let misspelled = saga.replacen("effect: payment-reserve", "effect: payment-reserv", 1);
        let wrong = providers.replacen("attempts: 8", "attempts: many", 1);
        let checked = check(&[file("saga.yaml", &misspelled), file("providers.yaml", &wrong)]);
        let text = problems_text(&checked.answer.problems);
        assert_eq!(checked.answer.problems.len(), 2, "{text}");
        assert!(text.starts_with("providers.yaml:") && text.contains("not `many`"), "{text}");
        assert!(text.contains("\nsaga.yaml:") && text.contains("did you mean `payment-reserve`?"), "{text}");
        // A file that cannot be read may have any effect.
        let checked = check(&[file("saga.yaml", &misspelled), file("providers.yaml", "kind: [")]);
        assert_eq!(checked.answer.problems.len(), 1, "{}", problems_text(&checked.answer.problems));
    }
}
