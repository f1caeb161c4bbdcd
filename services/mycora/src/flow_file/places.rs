//! Which line of the file a field of the request came from.

use std::collections::HashMap;

use model::Violation;

use super::problem::{Place, Problem};

/// How often a field is cut to find what it is part of. Names with more brackets than that in them are not looked for: each
/// cut reads all that is left.
const CUTS_MAX: usize = 64;

/// Where a field stands and what the file calls it.
#[derive(Debug, Clone)]
struct Spot {
    place: Option<Place>,
    label: String,
}

/// Fields of `SubmitFlowRequest`, such as `flow.nodes[3].depends[0]`, and where they stand.
#[derive(Debug, Clone)]
pub(super) struct Places(Option<HashMap<String, Spot>>);

impl Places {
    /// Remembers what is added.
    pub(super) fn remembered() -> Self {
        Self(Some(HashMap::new()))
    }

    /// Forgets what is added.
    pub(super) const fn forgotten() -> Self {
        Self(None)
    }

    /// Whether it is worth the while to say where something stands.
    pub(super) const fn are_remembered(&self) -> bool {
        self.0.is_some()
    }

    /// Notes where a field stands; `label` is what people call it.
    pub(super) fn add(&mut self, field: impl Into<String>, place: Place, label: impl Into<String>) {
        if let Some(spots) = &mut self.0 {
            spots.insert(field.into(), Spot { place: Some(place), label: label.into() });
        }
    }

    /// Notes that a field is not from the file.
    pub(super) fn add_outside(&mut self, field: impl Into<String>, label: impl Into<String>) {
        if let Some(spots) = &mut self.0 {
            spots.insert(field.into(), Spot { place: None, label: label.into() });
        }
    }

    /// Says it at the place of the field, or of what the field is part of.
    pub(super) fn locate(&self, violation: &Violation) -> Problem {
        let mut field = violation.field.as_str();
        for _ in 0..CUTS_MAX {
            if let Some(Spot { place, label }) = self.0.as_ref().and_then(|spots| spots.get(field)) {
                let message = match label.as_str() {
                    "" => violation.description.clone(),
                    label => format!("{label}: {}", violation.description),
                };
                return Problem { place: *place, message };
            }
            // What stands in brackets is a name and may contain points.
            let cut = if field.ends_with(']') { field.rfind('[') } else { field.rfind('.') };
            match cut {
                Some(end) => field = &field[..end],
                None => break,
            }
        }
        let message = format!("{}: {}", violation.field, violation.description);
        Problem { place: None, message }
    }
}
