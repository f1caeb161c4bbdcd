//! Where a watch stands: the revision of the last event seen, and its random bits.

use model::Revision;

/// The revision in a position that storage gave, as `<revision>.<bits>`.
#[must_use]
pub fn revision_of(position: &str) -> Revision {
    let number = position.split_once('.').map_or(position, |(revision, _)| revision);
    Revision(number.parse().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_revision_stands_before_the_point() {
        assert_eq!(revision_of("17.00ff"), Revision(17));
        assert_eq!(revision_of(""), Revision(0));
    }
}
