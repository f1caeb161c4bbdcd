//! `make faults`: breaks suites by repeatable chance, and reports whether they kept their promises.
//!
//! - `MYCORA_FAULTS_SEEDS`: which, such as `3`, `1-10` or `1,5,9`; default 1-10
//! - `MYCORA_FAULTS_COUNT`: faults of each seed; default 30
//! - `MYCORA_FAULTS_FORMS`: `up`, `processes`, or both with a comma between them; default both
//! - `MYCORA_FAULTS_KINDS`: only these kinds, as the table calls them, such as `SIGTERM,disk full`
//! - `MYCORA_FAULTS_ENOUGH`: `first` ends it after the first run that broke a promise; default all runs
//! - `MYCORA_FAULTS_KEEP`: a directory for histories and logs of all runs; default target/faults, for runs that broke a promise

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use faults::report;
use faults::run::{Outcome, Plan, run};
use faults::schedule::Kind;
use faults::suite::Form;

/// After so long whatever does not work hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let (plans, first_is_enough) = match settings() {
        Ok(settings) => settings,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let keep = std::env::var_os("MYCORA_FAULTS_KEEP").map(PathBuf::from);
    let keep_all = keep.is_some();
    let keep = keep.unwrap_or_else(|| PathBuf::from("target/faults"));
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("there is no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut outcomes = Vec::new();
    for plan in plans {
        let outcome = runtime.block_on(run(plan));
        println!("{}", report::line(&outcome));
        let broke = !outcome.violations.is_empty() || !outcome.panics().is_empty();
        if broke {
            print!("{}", report::violations(&outcome));
        }
        if broke || keep_all {
            match kept(&outcome, &keep) {
                Ok(dir) => println!("its history and logs are in {}", dir.display()),
                Err(error) => eprintln!("its history cannot be kept: {error}"),
            }
        }
        outcomes.push(outcome);
        if broke && first_is_enough {
            break;
        }
    }
    println!("\n{}\n{}", report::recoveries(&outcomes), report::breaks(&outcomes));
    let (faults, broken) = outcomes.iter().fold((0, 0), |(faults, broken), outcome| {
        (faults + outcome.recoveries.len(), broken + outcome.violations.len() + outcome.panics().len())
    });
    println!("{faults} faults, {broken} violations");
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reads from the environment the runs, and true if the first that breaks a promise is the last.
fn settings() -> Result<(Vec<Plan>, bool), String> {
    let setting = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let first_is_enough = match setting("MYCORA_FAULTS_ENOUGH", "").as_str() {
        "" => false,
        "first" => true,
        other => return Err(format!("MYCORA_FAULTS_ENOUGH is `first` or nothing, not `{other}`")),
    };
    let faults = setting("MYCORA_FAULTS_COUNT", "30");
    let faults = faults.parse().map_err(|_| format!("MYCORA_FAULTS_COUNT is a number, not `{faults}`"))?;
    let kinds = kinds(&setting("MYCORA_FAULTS_KINDS", ""))?;
    let mut plans = Vec::new();
    for form in setting("MYCORA_FAULTS_FORMS", "up,processes").split(',') {
        let form = [Form::AllInOne, Form::Processes].into_iter().find(|known| known.as_str() == form.trim());
        let form = form.ok_or("MYCORA_FAULTS_FORMS is `up`, `processes` or `up,processes`")?;
        for seed in seeds(&setting("MYCORA_FAULTS_SEEDS", "1-10"))? {
            plans.push(Plan { seed, form, faults, kinds: kinds.clone(), patience: PATIENCE });
        }
    }
    Ok((plans, first_is_enough))
}

/// Kinds by the names that tables have for them, with commas.
fn kinds(text: &str) -> Result<Vec<Kind>, String> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let known = |name: &str| Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
    let all = || Kind::ALL.map(Kind::as_str).join(", ");
    names
        .map(|name| known(name).ok_or_else(|| format!("there is no kind `{name}` of faults but {}", all())))
        .collect()
}

/// `3`, `1-10`, or several with commas.
fn seeds(text: &str) -> Result<Vec<u64>, String> {
    let bad = || format!("MYCORA_FAULTS_SEEDS is such as `3`, `1-10` or `1,5,9`, not `{text}`");
    let mut seeds = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| bad());
        seeds.extend(number(first)?..=number(last)?);
    }
    if seeds.is_empty() { Err(bad()) } else { Ok(seeds) }
}

/// Writes the history of a run, and the logs of the processes.
fn kept(outcome: &Outcome, keep: &Path) -> std::io::Result<PathBuf> {
    let dir = keep.join(format!("{}-{}", outcome.plan.form.as_str(), outcome.plan.seed));
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("history.txt"), format!("{:#?}", outcome.history))?;
    std::fs::write(dir.join("faults.txt"), format!("{:#?}", outcome.recoveries))?;
    for (name, output) in &outcome.outputs {
        std::fs::write(dir.join(format!("{name}.log")), output)?;
    }
    Ok(dir)
}
