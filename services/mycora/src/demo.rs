//! The demonstration: a flow on real input, compiled in, so that it runs from any directory; and
//! that of sagas.

pub mod saga;

use flow_file::{FileRoot, FlowFile, FlowFileSource};
use proto::v1;
use uuid::Uuid;

use crate::command::{CliSession, submit, watch};
use crate::failure::CliError;
use crate::output::live::ProgressDisplay;
use crate::output::{self, OutputFormat, json, table};

/// The files that the flow names, by the paths it names them with.
const FILES: &[(&str, &[u8])] = &[
    ("split.py", include_bytes!("../demo/split.py")),
    ("year.py", include_bytes!("../demo/year.py")),
    ("merge.rhai", include_bytes!("../demo/merge.rhai")),
    ("report.sh", include_bytes!("../demo/report.sh")),
    (
        "../../../tests/fixtures/seattle-weather.csv",
        include_bytes!("../../../tests/fixtures/seattle-weather.csv"),
    ),
];
/// The job that writes the report, and the file it writes.
const REPORT: (&str, &str) = ("report", "report.txt");

/// Submits the flow, shows how it goes on and what it gave; gives the exit code.
///
/// # Errors
/// When the coordinator cannot be reached, or on Ctrl-C.
pub async fn run(session: &CliSession) -> Result<u8, CliError> {
    let context = session.context()?;
    let file = flow_file()?;
    let answer = submit::submit(session, context, &file, None, Uuid::new_v4()).await?;
    let id = answer.flow.unwrap_or_default().id;
    let mut progress = ProgressDisplay::new(session.global.quiet);
    let flow = watch::follow(&session.clients, context, id, &mut progress).await?;

    let nodes = session.clients.list_nodes(context, id, &[]).await?;
    match session.global.output {
        OutputFormat::Table => print_report(session, context, &flow, &nodes).await?,
        format => output::answer(format, || json::FlowDocument::new(&flow, &nodes), String::new)?,
    }
    Ok(watch::exit_code(&flow))
}

/// The flow as it is compiled in.
fn flow_file() -> Result<FlowFile, CliError> {
    let source = FlowFileSource {
        name: "flow.yaml".into(),
        text: include_str!("../demo/flow.yaml").into(),
        files: FileRoot::Embedded(FILES),
    };
    FlowFile::parse(source, &[]).map_err(|problems| CliError::Failed(problems.to_string()))
}

async fn print_report(
    session: &CliSession,
    context: u32,
    flow: &v1::Flow,
    nodes: &[v1::FlowNode],
) -> Result<(), CliError> {
    let (job, name) = REPORT;
    let report = nodes.iter().find(|node| node.name == job).and_then(|node| node.outputs.get(name));
    match report {
        Some(blob) => {
            let bytes = session.clients.get_blob(context, blob.sha256.clone()).await?;
            output::print(&format!("\n{}\n", String::from_utf8_lossy(&bytes)))?;
        }
        None => output::note(&format!("the flow left no {name}")),
    }
    let rows: Vec<_> = flow.result.iter().map(|(key, value)| vec![key.clone(), value.clone()]).collect();
    output::print(&table::render(&["RESULT", "VALUE"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flow_is_good_and_carries_the_weather_along() {
        let file = flow_file().expect("a good flow");
        let names: Vec<_> = file.spec.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["split", "year-2012", "year-2013", "year-2014", "year-2015", "merge", "report"]);
        let sizes: Vec<_> = file.uploads.iter().map(|upload| upload.blob.size).collect();
        assert_eq!(sizes, [47_838]);
        for (i, year) in (1..=4).zip(2012..) {
            let job = file.spec.nodes[i].job.as_ref().expect("a job");
            assert_eq!(job.env_vars["YEAR"], year.to_string());
        }
    }

    #[test]
    fn the_same_file_can_be_submitted_from_disk() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/flow.yaml");
        let file =
            FlowFileSource::open(path).and_then(|source| FlowFile::parse(source, &[])).expect("a good flow");
        assert_eq!(file.spec, flow_file().expect("a good flow").spec);
    }
}
