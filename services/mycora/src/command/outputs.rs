//! `mycora flow outputs`: the files that jobs made, listed or fetched.
//!
//! Names of outputs, and what a coordinator reports of them, are untrusted: each is checked again before anything is written,
//! and content is written under a temporary name until its hash was verified.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use model::job::check_relative_path;
use proto::v1;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tempfile::Builder;

use super::{CliSession, values};
use crate::clients::Clients;
use crate::failure::CliError;
use crate::output::{self, OutputFormat, table};

/// Shown below the options.
pub(super) const AFTER_HELP: &str = "\
Examples:
  mycora flow outputs 3
  mycora flow outputs 3 merge --to results

With --to the files of one job are written into the folder itself, those of all jobs into a folder for each job. Nothing is written outside of it, and no file is overwritten without --force.";

/// Arguments of `flow outputs`.
#[derive(Debug, Args)]
pub struct FlowOutputsArgs {
    /// The flow's number
    #[arg(value_parser = values::id)]
    pub id: u32,
    /// Only the files of this job
    pub job: Option<String>,
    /// Write the files into this folder, which is made when it is not there
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
    /// Replace files that are there already
    #[arg(long, requires = "to")]
    pub force: bool,
}

/// A file that a job made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FlowOutputFile {
    job: String,
    file: String,
    size: u64,
    sha256: String,
    /// Where it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
}

/// Answer of the command.
#[derive(Debug, Serialize)]
struct FlowOutputsDocument<'a> {
    outputs: &'a [FlowOutputFile],
}

pub(super) async fn run(session: &CliSession, args: &FlowOutputsArgs) -> Result<(), CliError> {
    let context = session.context()?;
    let nodes = session.clients.list_nodes(context, args.id, &[]).await?;
    let mut made = made_by(&nodes, args)?;
    let format = session.global.output;
    if format == OutputFormat::Table && made.is_empty() {
        output::note("there are no files; jobs keep those that they name under `outputs`");
        return Ok(());
    }
    if let Some(dir) = &args.to {
        place(&mut made, dir, args.job.is_none())?;
        check_free(&made, args.force)?;
        for file in &made {
            fetch(&session.clients, context, file, args.force).await?;
        }
    }
    output::answer(format, || FlowOutputsDocument { outputs: &made }, || listed(&made))
}

fn made_by(nodes: &[v1::FlowNode], args: &FlowOutputsArgs) -> Result<Vec<FlowOutputFile>, CliError> {
    let wanted = |node: &&v1::FlowNode| args.job.as_ref().is_none_or(|job| *job == node.name);
    if let Some(job) = &args.job
        && !nodes.iter().any(|node| node.name == *job)
    {
        let id = args.id;
        let hint = ::flow::suggestion(job, nodes.iter().map(|node| node.name.as_str()));
        return Err(CliError::Failed(format!(
            "flow {id} has no job `{job}`{hint}\n`mycora flow jobs {id}` lists its jobs"
        )));
    }
    let files = |node: &v1::FlowNode| {
        let job = node.name.clone();
        let made = |(file, blob): (&String, &v1::BlobRef)| FlowOutputFile {
            job: job.clone(),
            file: file.clone(),
            size: blob.size,
            sha256: blob.sha256.clone(),
            path: None,
        };
        node.outputs.iter().map(made).collect::<Vec<_>>()
    };
    Ok(nodes.iter().filter(wanted).flat_map(files).collect())
}

/// Returns where each file goes.
fn place(made: &mut [FlowOutputFile], dir: &Path, by_job: bool) -> Result<(), CliError> {
    for file in made {
        let FlowOutputFile { job, file: name, .. } = &*file;
        let bad = |what: &str| {
            CliError::Failed(format!("the job `{job}` names a file `{name}`: {what}; nothing was written"))
        };
        check_relative_path(name).map_err(bad)?;
        // A job's name is the name of a folder here.
        check_relative_path(job).map_err(bad)?;
        if job.contains('/') {
            return Err(bad("the job's name is no name"));
        }
        file.path = Some(if by_job { dir.join(job).join(name) } else { dir.join(name) });
    }
    Ok(())
}

/// Refuses before anything is fetched what could not be written.
fn check_free(made: &[FlowOutputFile], force: bool) -> Result<(), CliError> {
    let paths = || made.iter().filter_map(|file| file.path.as_deref());
    let taken = paths().find(|path| if force { path.is_dir() } else { path.symlink_metadata().is_ok() });
    match taken {
        None => Ok(()),
        Some(path) if force => {
            Err(CliError::Failed(format!("{} is a folder; nothing was written", path.display())))
        }
        Some(path) => Err(CliError::Failed(format!(
            "{} is there already; nothing was written. Name another folder with --to, or replace files with --force",
            path.display()
        ))),
    }
}

/// Fetches one file: whole, or not at all.
async fn fetch(clients: &Clients, context: u32, made: &FlowOutputFile, force: bool) -> Result<(), CliError> {
    let Some(path) = &made.path else { return Ok(()) };
    let parent = path.parent().unwrap_or(Path::new("."));
    let failed =
        |error: std::io::Error| CliError::Failed(format!("cannot write {}: {error}", path.display()));
    fs::create_dir_all(parent).map_err(failed)?;
    // With the mode of any new file: temporary ones are for their owner alone.
    let mode = fs::Permissions::from_mode(0o666);
    let mut file = Builder::new().permissions(mode).tempfile_in(parent).map_err(failed)?;
    let wrong = || {
        CliError::Failed(format!(
            "`{}` of the job `{}` did not arrive as the flow describes it ({} bytes, SHA-256 {}); it was not written",
            made.file, made.job, made.size, made.sha256
        ))
    };
    let (mut hash, mut size) = (Sha256::new(), 0);
    let mut pieces = clients.stream_blob(context, made.sha256.clone()).await?;
    while let Some(v1::GetBlobResponse { data }) = pieces.next().await? {
        size += data.len() as u64;
        if size > made.size {
            return Err(wrong());
        }
        hash.update(&data);
        file.write_all(&data).map_err(failed)?;
    }
    if size != made.size || format!("{:x}", hash.finalize()) != made.sha256 {
        return Err(wrong());
    }
    let kept = if force { file.persist(path) } else { file.persist_noclobber(path) };
    kept.map(drop).map_err(|error| failed(error.error))
}

fn listed(made: &[FlowOutputFile]) -> String {
    let fetched = made.iter().any(|file| file.path.is_some());
    let rows: Vec<_> = made
        .iter()
        .map(|file| {
            let FlowOutputFile { job, file, size, sha256, path } = file;
            let place = path.as_ref().map_or_else(|| sha256.clone(), |path| path.display().to_string());
            vec![job.clone(), file.clone(), size.to_string(), place]
        })
        .collect();
    table::render_whole(&["JOB", "FILE", "BYTES", if fetched { "WRITTEN TO" } else { "SHA-256" }], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(job: &str, file: &str) -> FlowOutputFile {
        FlowOutputFile { job: job.into(), file: file.into(), size: 1, sha256: "0".repeat(64), path: None }
    }

    #[test]
    fn no_name_leads_outside() {
        let dir = Path::new("results");
        for name in ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a/./b"] {
            let refused = place(&mut [made("a", name)], dir, true);
            assert!(
                refused.is_err_and(|failure| failure.to_string().contains("nothing was written")),
                "{name}"
            );
        }
        for job in ["..", ".", "", "a/b", "/"] {
            assert!(place(&mut [made(job, "x")], dir, true).is_err(), "{job}");
        }
        let mut good = [made("a", "x/y.txt"), made("b", "x")];
        place(&mut good, dir, true).expect("good names");
        assert_eq!(good[0].path.as_deref(), Some(Path::new("results/a/x/y.txt")));
        place(&mut good, dir, false).expect("good names");
        assert_eq!(good[1].path.as_deref(), Some(Path::new("results/x")));
    }

    #[test]
    fn what_is_there_is_seen_before_anything_is_fetched() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = [made("a", "x"), made("a", "gone")];
        place(&mut files, dir.path(), false).expect("good names");
        check_free(&files, false).expect("nothing is there");
        // A link that leads nowhere is there as well.
        std::os::unix::fs::symlink("/nowhere", dir.path().join("gone")).expect("a link");
        let taken = check_free(&files, false).expect_err("it is there");
        assert!(taken.to_string().contains("gone is there already"), "{taken}");
        check_free(&files, true).expect("it may be replaced");
        fs::create_dir(dir.path().join("x")).expect("a folder");
        assert!(check_free(&files, true).is_err(), "a folder is not replaced");
    }
}
