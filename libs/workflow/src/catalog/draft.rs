//! Manifests that may have problems: those of each, and those of all together, are reported at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{SagaName, TenantId};
use yaml::{Problem, Problems};

use super::{Catalog, CatalogBuilder, LoadedManifest, OutlinedEffects, RequiredDefinition, by_file};
use crate::definition::Saga;
use crate::manifest::{self, DocumentOutline, ManifestDefinition, ParsedManifest};

/// A manifest as it was found.
#[derive(Debug)]
pub struct ManifestDraft {
    file: LoadedManifest,
    others: Vec<DocumentOutline>,
    problems: Vec<Problem>,
}

impl ManifestDraft {
    /// Reads a manifest; `name` is what messages call the file.
    #[must_use]
    pub fn read(name: &str, text: &str) -> Self {
        let ParsedManifest { documents, others, problems } = manifest::read_lenient(text);
        Self { file: LoadedManifest { name: name.to_owned(), documents }, others, problems }
    }

    /// A file that cannot be read at all.
    #[must_use]
    pub fn unreadable(name: &str, message: String) -> Self {
        let file = LoadedManifest { name: name.to_owned(), documents: Vec::new() };
        Self {
            file,
            others: vec![DocumentOutline::default()],
            problems: vec![Problem { place: None, message }],
        }
    }

    /// The file with the documents that are good by themselves.
    #[must_use]
    pub const fn file(&self) -> &LoadedManifest {
        &self.file
    }

    /// Returns whether one of its documents is a provider of effects, or may be one.
    #[must_use]
    pub fn may_provide(&self) -> bool {
        let is_provider = |document: &manifest::ManifestDocument| {
            matches!(document.definition, ManifestDefinition::Provider(_))
        };
        let may_be =
            |outline: &DocumentOutline| outline.provides.as_ref().is_none_or(|effects| !effects.is_empty());
        self.file.documents.iter().any(is_provider) || self.others.iter().any(may_be)
    }

    /// Removes the orders, so that their effects are not looked up; returns how many there were.
    pub fn take_orders(&mut self) -> usize {
        let documents = self.file.documents.iter_mut().map(|document| &mut document.orders);
        let orders = documents.chain(self.others.iter_mut().map(|outline| &mut outline.orders));
        orders.map(|orders| std::mem::take(orders).len()).sum()
    }
}

impl Catalog {
    /// Makes a catalog of manifests as [`Catalog::new`] does.
    ///
    /// # Errors
    /// Every problem of the manifests, each by itself and all of them together, by file. Problems that only follow from a
    /// document that is invalid by itself are not reported.
    pub fn of(
        drafts: &[ManifestDraft],
        before: &Self,
        live: &[RequiredDefinition],
    ) -> Result<Self, Vec<Problems>> {
        let outlines = drafts.iter().flat_map(|draft| &draft.others);
        let mut made =
            CatalogBuilder { outlined: OutlinedEffects::of(outlines), ..CatalogBuilder::default() };
        made.check(&drafts.iter().map(ManifestDraft::file).collect::<Vec<_>>(), before, live);
        for ManifestDraft { file, others, problems } in drafts {
            for outline in others {
                made.orders(&file.name, None, &outline.orders);
            }
            if !problems.is_empty() {
                made.problems.entry(file.name.clone()).or_default().extend(problems.iter().cloned());
            }
        }
        let CatalogBuilder { catalog, problems, .. } = made;
        if problems.is_empty() { Ok(catalog) } else { Err(by_file(problems)) }
    }

    /// Checks a file that a tenant brings as [`Catalog::check_for`] does.
    ///
    /// # Errors
    /// Everything that is wrong with it, and everything that does not fit.
    pub fn check_draft_for(
        &self,
        tenant: &TenantId,
        draft: &ManifestDraft,
        own: &BTreeMap<SagaName, Arc<Saga>>,
        may_provide: bool,
    ) -> Result<(), Problems> {
        let mut problems = self.misfits(tenant, (&draft.file, &draft.others), own, may_provide);
        problems.extend(draft.problems.iter().cloned());
        if problems.is_empty() { Ok(()) } else { Err(Problems::new(&draft.file.name, problems)) }
    }
}
