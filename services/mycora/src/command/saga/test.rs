//! `mycora saga test`: scenarios of sagas, in virtual time and without any server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use rehearsal::player::RunTimelineEntry;
use rehearsal::report::{ScenarioReport, VariationsReport, length, rehearse};
use rehearsal::scenario::{FILE_BYTES_MAX, ScenarioFile};
use serde::Serialize;
use yaml::Problems;

use crate::failure::CliError;
use crate::output::{self, OutputFormat, labels};

/// Examples of the command.
pub const AFTER_HELP: &str = "\
Examples:
  mycora saga test order.test.yaml
  mycora saga test tests/*.test.yaml --exhaustive
  mycora --output json saga test order.test.yaml

A scenario file names the manifests it is about, and for each scenario what the instance is given, who answers its work and what is expected:

  kind: SagaTest
  manifests: [order.yaml]
  scenarios:
    - name: not paid in time
      given: [{ event: OrderPlaced, aggregate: Order, data: { order_id: o-1 } }]
      answers: [{ effect: payment-reserve, succeed: { payment_id: p-1 }, after: 2s }]
      expect: { status: compensated, compensations: [payment-release] }

specs/saga.md describes every key. Exit codes: 0 everything holds; 1 a scenario failed; 2 a file is wrong.";

/// Arguments of `saga test`.
#[derive(Debug, Args)]
pub struct SagaTestArgs {
    /// Scenario files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Try everything that can go wrong in each scenario as well: every work fails or loses its reply, every input comes twice or
    /// behind the next, each timer fires first, and a cancel comes behind each input
    #[arg(long)]
    pub exhaustive: bool,
}

/// Answer for programs.
#[derive(Debug, Serialize)]
struct SagaTestReport {
    passed: bool,
    files: Vec<ScenarioFileReport>,
}

#[derive(Debug, Serialize)]
struct ScenarioFileReport {
    file: String,
    scenarios: Vec<ScenarioReport>,
}

/// Plays the scenarios; gives the exit code.
///
/// # Errors
/// A file is wrong, or the report cannot be written.
pub fn run(args: &SagaTestArgs, format: OutputFormat) -> Result<u8, CliError> {
    // All files are read first, to report all mistakes at once.
    let read: Vec<_> = args.files.iter().map(|file| (file, scenarios(file))).collect();
    let wrong: Vec<_> = read.iter().filter_map(|(_, read)| read.as_ref().err()).flatten().collect();
    if !wrong.is_empty() {
        let wrong: Vec<_> = wrong.into_iter().map(ToString::to_string).collect();
        return Err(CliError::Invalid(wrong.join("\n")));
    }
    let files = read.iter().filter_map(|(file, read)| Some((file, read.as_ref().ok()?)));
    let files = files.map(|(file, scenarios)| ScenarioFileReport {
        file: file.display().to_string(),
        scenarios: scenarios.iter().map(|scenario| rehearse(scenario, args.exhaustive)).collect(),
    });
    let files: Vec<_> = files.collect();
    let passed = files.iter().flat_map(|file| &file.scenarios).all(|scenario| scenario.passed);
    let document = SagaTestReport { passed, files };
    output::answer(format, || &document, || text(&document.files))?;
    Ok(u8::from(!passed))
}

/// Reads a scenario file and its manifests.
fn scenarios(path: &Path) -> Result<Vec<rehearsal::Scenario>, Vec<Problems>> {
    let name = path.display().to_string();
    let refused = |why: String| vec![Problems::new(&name, vec![yaml::Problem { place: None, message: why }])];
    let text = read(path).map_err(refused)?;
    let source = ScenarioFile::read(&name, &text).map_err(|problems| vec![problems])?;
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let (mut manifests, mut wrong) = (Vec::new(), Vec::new());
    for (place, manifest) in source.manifests() {
        let path = folder.join(manifest);
        match read(&path) {
            Ok(text) => manifests.push((path.display().to_string(), text)),
            Err(why) => wrong.push(source.unreadable(*place, &why)),
        }
    }
    if wrong.is_empty() { source.scenarios(&manifests) } else { Err(wrong) }
}

/// Reads a file that may be as long as a manifest.
fn read(path: &Path) -> Result<String, String> {
    let refused = |error: std::io::Error| format!("`{}` cannot be read: {error}", path.display());
    let mut text = String::new();
    let most = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    // One byte more reveals a file that is too long.
    File::open(path)
        .and_then(|file| file.take(most.saturating_add(1)).read_to_string(&mut text))
        .map_err(refused)?;
    Ok(text)
}

/// The report for people.
fn text(files: &[ScenarioFileReport]) -> String {
    let mut text = String::new();
    for file in files {
        for scenario in &file.scenarios {
            write_scenario(&mut text, scenario);
        }
    }
    let all: Vec<_> = files.iter().flat_map(|file| &file.scenarios).collect();
    let failed = all.iter().filter(|scenario| !scenario.passed).count();
    let variations: Vec<_> = all.iter().filter_map(|scenario| scenario.variations.as_ref()).collect();
    let _ = write!(text, "{}, {failed} failed", labels::count(all.len(), "scenario", "scenarios"));
    if !variations.is_empty() {
        let played = variations.iter().map(|variations| variations.played).sum();
        let failed: usize = variations.iter().map(|variations| variations.failed).sum();
        let _ = write!(text, "; {}, {failed} failed", labels::count(played, "variation", "variations"));
    }
    text.push('\n');
    text
}

fn write_scenario(text: &mut String, scenario: &ScenarioReport) {
    let ScenarioReport { name, passed, end, lasted_ms, mismatches, problems, timeline, variations } =
        scenario;
    let verdict = if *passed { "ok    " } else { "FAILED" };
    let tried = variations.as_ref().map(tried).unwrap_or_default();
    // Writing to a text cannot fail.
    let _ = writeln!(text, "{verdict}  {name}: {end} after {}{tried}", length(*lasted_ms));
    for mismatch in mismatches {
        let _ = writeln!(
            text,
            "        {}: expected {}, found {}",
            mismatch.what, mismatch.expected, mismatch.found
        );
    }
    for problem in problems {
        let _ = writeln!(text, "        {problem}");
    }
    if !mismatches.is_empty() || !problems.is_empty() {
        write_timeline(text, timeline);
    }
    let Some(variations) = variations else { return };
    for failure in &variations.failures {
        let _ = writeln!(text, "        when {}:", failure.variation);
        for broken in &failure.broken {
            let _ = writeln!(text, "          {broken}");
        }
        write_timeline(text, &failure.timeline);
    }
    let left = variations.failed.saturating_sub(variations.failures.len());
    if left > 0 {
        let _ = writeln!(text, "        and {}", labels::count(left, "more variation", "more variations"));
    }
}

/// Ends of variations, and effects whose answers were guessed.
fn tried(variations: &VariationsReport) -> String {
    let VariationsReport { played, ends, guessed, failed: _, failures: _ } = variations;
    let shown = |ends: &BTreeMap<&str, usize>| {
        let ends: Vec<_> = ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
        ends.join(", ")
    };
    let mut text = format!("; {}: {}", labels::count(*played, "variation", "variations"), shown(ends));
    if !guessed.is_empty() {
        let guessed: Vec<_> = guessed.iter().map(String::as_str).collect();
        let _ = write!(text, "; no scenario answers {}, which succeeded with {{}}", guessed.join(", "));
    }
    text
}

fn write_timeline(text: &mut String, timeline: &[RunTimelineEntry]) {
    for moment in timeline {
        let RunTimelineEntry { at_ms, input, fate, status, step, work } = moment;
        let place = if status.is_empty() { String::new() } else { format!("; {status} at {step}") };
        let _ = writeln!(text, "          {:>8}  {input}: {fate}{place}", length(*at_ms));
        for work in work {
            let _ = writeln!(text, "                    -> {work}");
        }
    }
}
