//! Capabilities of a machine, found out without taking a job.

use model::ScriptType;

use crate::setup::{RunnerTestBench, place, settings};

#[tokio::test]
async fn a_survey_reports_the_capabilities_of_a_runner() {
    let dir = place();
    let survey = runner::probe_capabilities(&settings(dir.path())).await.expect("a survey");
    let bench = RunnerTestBench::new().await;
    assert_eq!(survey.isolation_support, *bench.runner.isolation_support());
    let types: Vec<_> = bench.runner.instances().iter().map(|instance| instance.script_type).collect();
    assert_eq!(survey.types, types);
    assert!(survey.types.contains(&ScriptType::Shell) && survey.types.contains(&ScriptType::Rhai));
}
