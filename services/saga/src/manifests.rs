//! Manifests in a directory: all of them are read and checked, or none comes in force.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use workflow::catalog::{Catalog, File};
use workflow::definition::Saga;
use workflow::manifest::{self, Document, MANIFEST_BYTES_MAX};
use yaml::{Problem, Problems};

/// Files of a directory.
const FILES_MAX: usize = 1000;

/// Everything that is wrong with manifests, by file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadManifests(pub Vec<Problems>);

impl std::fmt::Display for BadManifests {
    /// One line for each problem, as `file:line:column: message`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, problems) in self.0.iter().enumerate() {
            write!(f, "{}{problems}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for BadManifests {}

/// Manifests that were read.
#[derive(Debug, Default)]
pub struct Manifests {
    files: Vec<File>,
}

impl Manifests {
    /// Reads all manifests of a directory: its files whose names end in `.yaml` or `.yml` and which say that they are one, in the
    /// order of their names. A file that does not begin with `kind:` is something else, such as a flow file.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn read(directory: &Path) -> Result<Self, BadManifests> {
        let refused = |path: &Path, message: String| {
            BadManifests(vec![Problems::new(
                &path.display().to_string(),
                vec![Problem { place: None, message }],
            )])
        };
        let unreadable =
            |path: &Path, error: &std::io::Error| refused(path, format!("cannot be read: {error}"));
        let entries = std::fs::read_dir(directory).map_err(|error| unreadable(directory, &error))?;
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()
            .map_err(|error| unreadable(directory, &error))?;
        paths.retain(|path| {
            path.extension().is_some_and(|end| end == "yaml" || end == "yml") && path.is_file()
        });
        paths.sort();
        if paths.len() > FILES_MAX {
            return Err(refused(
                directory,
                format!("has {} manifests, at most {FILES_MAX} are read", paths.len()),
            ));
        }
        let (mut files, mut problems) = (Vec::new(), Vec::new());
        for path in paths {
            let name = path.display().to_string();
            let size = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            if size > MANIFEST_BYTES_MAX as u64 {
                let message =
                    format!("a manifest has at most {MANIFEST_BYTES_MAX} bytes, this one has {size}");
                problems.push(Problems::new(&name, vec![Problem { place: None, message }]));
                continue;
            }
            match std::fs::read_to_string(&path) {
                Ok(text) if !says_kind(&text) => {}
                Ok(text) => match manifest::read(&name, &text) {
                    Ok(documents) => files.push(File { name, documents }),
                    Err(found) => problems.push(found),
                },
                Err(error) => return Err(unreadable(&path, &error)),
            }
        }
        if problems.is_empty() { Ok(Self { files }) } else { Err(BadManifests(problems)) }
    }

    /// Makes a catalog of them, which follows another one. `live` are definitions that have to keep their effects.
    ///
    /// # Errors
    /// Everything that does not fit.
    pub fn catalog(&self, before: &Catalog, live: &[Arc<Saga>]) -> Result<Catalog, BadManifests> {
        Catalog::new(&self.files, before, live).map_err(BadManifests)
    }

    /// All documents, each with the name of its file.
    pub fn by_file(&self) -> impl Iterator<Item = (&str, &Document)> {
        self.files
            .iter()
            .flat_map(|file| file.documents.iter().map(|document| (file.name.as_str(), document)))
    }

    /// All documents.
    #[must_use]
    pub fn documents(&self) -> Vec<Document> {
        self.files.iter().flat_map(|file| file.documents.clone()).collect()
    }
}

/// Returns whether a line of a file begins with `kind:`, as every document of a manifest has one.
fn says_kind(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("kind:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../libs/workflow/src/manifest/example.yaml");

    #[test]
    fn a_directory_is_read_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("written");
        write("order.yaml", EXAMPLE);
        write("make-label.yaml", "name: make-label\njobs: {}\n");
        write("notes.txt", "kind: Saga");
        let manifests = Manifests::read(dir.path()).expect("good");
        assert_eq!(manifests.documents().len(), 4);
        assert_eq!(manifests.catalog(&Catalog::default(), &[]).expect("it fits").sagas().count(), 1);
        write("bad.yaml", "kind: Saga\nname: a_b\n");
        write("worse.yml", "kind: Sagga\n");
        let refused = Manifests::read(dir.path()).expect_err("two are bad").to_string();
        assert!(refused.contains("bad.yaml:2:7: ") && refused.contains("worse.yml:1:7: "), "{refused}");
        let nowhere = Manifests::read(&dir.path().join("none")).expect_err("not there").to_string();
        assert!(nowhere.contains("none: cannot be read: "), "{nowhere}");
    }
}
