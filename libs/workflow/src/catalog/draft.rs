//! Manifests with which something may be wrong: what is wrong with each, and with all of them together, is told at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{SagaName, TenantId};
use yaml::{Problem, Problems};

use super::{Catalog, File, Making, Needed, Outlined, by_file};
use crate::definition::Saga;
use crate::manifest::{self, Definition, Outline, Reading};

/// A manifest as it was found.
#[derive(Debug)]
pub struct Draft {
    file: File,
    others: Vec<Outline>,
    problems: Vec<Problem>,
}

impl Draft {
    /// Reads a manifest; `name` is what messages call the file.
    #[must_use]
    pub fn read(name: &str, text: &str) -> Self {
        let Reading { documents, others, problems } = manifest::examine(text);
        Self { file: File { name: name.to_owned(), documents }, others, problems }
    }

    /// A file that cannot be read at all.
    #[must_use]
    pub fn unreadable(name: &str, message: String) -> Self {
        let file = File { name: name.to_owned(), documents: Vec::new() };
        Self { file, others: vec![Outline::default()], problems: vec![Problem { place: None, message }] }
    }

    /// The file with the documents that are good by themselves.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether one of its documents is a provider of effects, or may be one.
    #[must_use]
    pub fn may_provide(&self) -> bool {
        let is_provider =
            |document: &manifest::Document| matches!(document.definition, Definition::Provider(_));
        let may_be = |outline: &Outline| outline.provides.as_ref().is_none_or(|effects| !effects.is_empty());
        self.file.documents.iter().any(is_provider) || self.others.iter().any(may_be)
    }

    /// Leaves out what it orders, so that it is not looked for; gives how many effects that are.
    pub fn leave_orders_out(&mut self) -> usize {
        let documents = self.file.documents.iter_mut().map(|document| &mut document.orders);
        let orders = documents.chain(self.others.iter_mut().map(|outline| &mut outline.orders));
        orders.map(|orders| std::mem::take(orders).len()).sum()
    }
}

impl Catalog {
    /// Makes a catalog of manifests as [`Catalog::new`] does.
    ///
    /// # Errors
    /// Everything that is wrong with them, each by itself and all of them together, by file. What hangs on a document that is wrong
    /// by itself is not told.
    pub fn of(drafts: &[Draft], before: &Self, live: &[Needed]) -> Result<Self, Vec<Problems>> {
        let outlines = drafts.iter().flat_map(|draft| &draft.others);
        let mut made = Making { outlined: Outlined::of(outlines), ..Making::default() };
        made.check(&drafts.iter().map(Draft::file).collect::<Vec<_>>(), before, live);
        for Draft { file, others, problems } in drafts {
            for outline in others {
                made.orders(&file.name, None, &outline.orders);
            }
            if !problems.is_empty() {
                made.problems.entry(file.name.clone()).or_default().extend(problems.iter().cloned());
            }
        }
        let Making { catalog, problems, .. } = made;
        if problems.is_empty() { Ok(catalog) } else { Err(by_file(problems)) }
    }

    /// Checks a file that a tenant brings as [`Catalog::check_for`] does.
    ///
    /// # Errors
    /// Everything that is wrong with it, and everything that does not fit.
    pub fn check_draft_for(
        &self,
        tenant: &TenantId,
        draft: &Draft,
        own: &BTreeMap<SagaName, Arc<Saga>>,
        may_provide: bool,
    ) -> Result<(), Problems> {
        let mut problems = self.misfits(tenant, (&draft.file, &draft.others), own, may_provide);
        problems.extend(draft.problems.iter().cloned());
        if problems.is_empty() { Ok(()) } else { Err(Problems::new(&draft.file.name, problems)) }
    }
}
