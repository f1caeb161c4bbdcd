//! Map from fields of a value to the lines of the file that it was built from.

use std::collections::HashMap;

use crate::{Problem, SourcePosition};

/// Maximum number of times a field is cut to find the part it belongs to. Names with more brackets than that are not
/// searched: each cut reads all that is left.
const CUTS_MAX: usize = 64;

/// Where a field stands and what the file calls it.
#[derive(Debug, Clone)]
struct FieldLocation {
    place: Option<SourcePosition>,
    label: String,
}

/// Fields such as `flow.nodes[3].depends[0]`, and where they stand.
#[derive(Debug, Clone)]
pub struct SourceMap(Option<HashMap<String, FieldLocation>>);

impl SourceMap {
    /// A map that keeps what is added.
    #[must_use]
    pub fn recording() -> Self {
        Self(Some(HashMap::new()))
    }

    /// A map that drops what is added.
    #[must_use]
    pub const fn discarding() -> Self {
        Self(None)
    }

    /// Returns true if the positions of fields are recorded.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.0.is_some()
    }

    /// Notes where a field stands; `label` is what people call it.
    pub fn add(&mut self, field: impl Into<String>, place: SourcePosition, label: impl Into<String>) {
        if let Some(spots) = &mut self.0 {
            spots.insert(field.into(), FieldLocation { place: Some(place), label: label.into() });
        }
    }

    /// Notes that a field is not from the file.
    pub fn add_external(&mut self, field: impl Into<String>, label: impl Into<String>) {
        if let Some(spots) = &mut self.0 {
            spots.insert(field.into(), FieldLocation { place: None, label: label.into() });
        }
    }

    /// Reports the description at the place of the field, or of the nearest part that contains it.
    #[must_use]
    pub fn locate(&self, field: &str, description: &str) -> Problem {
        let mut part = field;
        for _ in 0..CUTS_MAX {
            if let Some(FieldLocation { place, label }) = self.0.as_ref().and_then(|spots| spots.get(part)) {
                let message = match label.as_str() {
                    "" => description.to_owned(),
                    label => format!("{label}: {description}"),
                };
                return Problem { place: *place, message };
            }
            // Brackets enclose a name, which may contain points.
            let cut = if part.ends_with(']') { part.rfind('[') } else { part.rfind('.') };
            match cut {
                Some(end) => part = &part[..end],
                None => break,
            }
        }
        let message = format!("{field}: {description}");
        Problem { place: None, message }
    }
}
