//! Manifests in a directory: all of them are read and checked, or none comes into force.

use std::path::{Path, PathBuf};

use workflow::catalog::{Catalog, ManifestDraft, RequiredDefinition};
use workflow::manifest::{MANIFEST_BYTES_MAX, ManifestDocument};
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

/// Manifests that were read, with what is wrong with them.
#[derive(Debug, Default)]
pub struct Manifests {
    drafts: Vec<ManifestDraft>,
}

impl Manifests {
    /// Reads all manifests of a directory, in the order of their names: its files whose names end in `.yaml` or `.yml` and which have a
    /// line that begins with `kind:`. Other files are something else, such as flow files. [`Manifests::catalog`] reports what is wrong
    /// with the manifests.
    ///
    /// # Errors
    /// The directory cannot be read, or has too many manifests.
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
        let mut drafts = Vec::new();
        for path in paths {
            let name = path.display().to_string();
            let size = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            if size > MANIFEST_BYTES_MAX as u64 {
                let message =
                    format!("a manifest has at most {MANIFEST_BYTES_MAX} bytes, this one has {size}");
                drafts.push(ManifestDraft::unreadable(&name, message));
                continue;
            }
            match std::fs::read_to_string(&path) {
                Ok(text) if !has_kind(&text) => {}
                Ok(text) => drafts.push(ManifestDraft::read(&name, &text)),
                Err(error) => {
                    drafts.push(ManifestDraft::unreadable(&name, format!("cannot be read: {error}")))
                }
            }
        }
        Ok(Self { drafts })
    }

    /// Makes a catalog of them, which follows another one. `live` are definitions that have to keep their effects.
    ///
    /// # Errors
    /// Everything that is wrong with single manifests, and with all of them together.
    pub fn catalog(&self, before: &Catalog, live: &[RequiredDefinition]) -> Result<Catalog, BadManifests> {
        Catalog::of(&self.drafts, before, live).map_err(BadManifests)
    }

    /// All documents that are good by themselves, each with the name of its file.
    pub fn by_file(&self) -> impl Iterator<Item = (&str, &ManifestDocument)> {
        let files = self.drafts.iter().map(ManifestDraft::file);
        files.flat_map(|file| file.documents.iter().map(|document| (file.name.as_str(), document)))
    }

    /// All documents that are good by themselves.
    #[must_use]
    pub fn documents(&self) -> Vec<ManifestDocument> {
        self.by_file().map(|(_, document)| document.clone()).collect()
    }
}

/// Returns whether a line of a file begins with `kind:`, as every document of a manifest has one.
fn has_kind(text: &str) -> bool {
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
        let problems = || {
            let manifests = Manifests::read(dir.path()).expect("it can be read");
            manifests.catalog(&Catalog::default(), &[]).expect_err("some are bad").to_string()
        };
        write("bad.yaml", "kind: Saga\nname: a_b\n");
        write("again.yaml", &EXAMPLE.replace("name: order-fulfilment", "name: again"));
        let refused = problems();
        // Problems of several manifests together are reported with the rest.
        assert!(refused.contains("bad.yaml:2:7: "), "{refused}");
        assert!(refused.contains("the provider `mail` stands twice"), "{refused}");
        write("worse.yml", "kind: Sagga\n");
        let refused = problems();
        assert!(refused.contains("bad.yaml:2:7: ") && refused.contains("worse.yml:1:7: "), "{refused}");
        let nowhere = Manifests::read(&dir.path().join("none")).expect_err("not there").to_string();
        assert!(nowhere.contains("none: cannot be read: "), "{nowhere}");
    }
}
